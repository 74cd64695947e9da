//! The order in which hosts of SRV records are asked (RFC 2782): by priority, and among equals by weight and chance.

/// A host that has the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) priority: u16,
    pub(crate) weight: u16,
    pub(crate) port: u16,
    pub(crate) name: String,
}

/// Hosts with their places, the first first. Those of one priority share a place if their weights are equal: the site does not mind
/// which is asked, so that the client may take the nearest. `below(n)` is a number that is less than n, by chance.
pub(crate) fn ordered(mut hosts: Vec<Host>, below: &mut dyn FnMut(u32) -> u32) -> Vec<(u16, Host)> {
    // Of one priority those without weight come first, as RFC 2782 wants it for the choice.
    hosts.sort_by_key(|host| (host.priority, host.weight));
    let mut all = Vec::with_capacity(hosts.len());
    let mut place = 0_u16;
    let groups: Vec<Vec<Host>> =
        hosts.chunk_by(|one, other| one.priority == other.priority).map(<[Host]>::to_vec).collect();
    for mut group in groups {
        let is_even = group.first().map(|host| host.weight) == group.last().map(|host| host.weight);
        if is_even {
            all.extend(group.into_iter().map(|host| (place, host)));
            place = place.saturating_add(1);
            continue;
        }
        while !group.is_empty() {
            let sum: u32 = group.iter().map(|host| u32::from(host.weight)).sum();
            let wanted = below(sum.saturating_add(1));
            let mut running = 0;
            let chosen = group.iter().position(|host| {
                running += u32::from(host.weight);
                running >= wanted
            });
            all.push((place, group.remove(chosen.unwrap_or(0))));
            place = place.saturating_add(1);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(priority: u16, weight: u16, name: &str) -> Host {
        Host { priority, weight, port: 7003, name: name.to_owned() }
    }

    fn places(hosts: &[Host], mut below: impl FnMut(u32) -> u32) -> Vec<(u16, String)> {
        ordered(hosts.to_vec(), &mut below).into_iter().map(|(place, host)| (place, host.name)).collect()
    }

    fn place(place: u16, name: &str) -> (u16, String) {
        (place, name.to_owned())
    }

    #[test]
    fn lower_priorities_come_first_and_equals_share_a_place() {
        let hosts = [host(20, 0, "far"), host(10, 5, "a"), host(10, 5, "b")];
        let placed = places(&hosts, |_| panic!("nothing is to be chosen"));
        assert_eq!(placed, [place(0, "a"), place(0, "b"), place(1, "far")]);
    }

    #[test]
    fn among_equal_priorities_weight_and_chance_choose() {
        let hosts = [host(10, 90, "large"), host(10, 10, "small"), host(10, 0, "spare")];
        let least = places(&hosts, |_| 0);
        assert_eq!(least, [place(0, "spare"), place(1, "small"), place(2, "large")], "it is not shut out");
        assert_eq!(places(&hosts, |n| n - 1)[0], place(0, "large"));
        assert_eq!(places(&hosts, |n| 10.min(n - 1))[0], place(0, "small"), "ten of hundred");
        let mut firsts = 0;
        for number in 0..=100 {
            let mut numbers = [number].into_iter();
            firsts += u32::from(places(&hosts, |_| numbers.next().unwrap_or(0))[0].1 == "large");
        }
        assert_eq!(firsts, 90);
    }
}
