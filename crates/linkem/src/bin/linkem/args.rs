//! The options of a link on the command line. The link options proper come from the library's table, each
//! with its `-ab` and `-ba` forms; this only adds those of the namespaces and of the emulator.

use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use linkem::{Builder, Link, LinkOptions, SETTINGS};

use crate::Failure;

/// The forms of a link option: both directions, A to B, B to A.
const SUFFIXES: [&str; 3] = ["", "-ab", "-ba"];

/// Link options as given, `("loss-ab", "0.01")`.
pub(crate) struct Settings {
    pub(crate) pairs: Vec<(String, String)>,
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        let forms = SETTINGS.iter().flat_map(|setting| SUFFIXES.map(|suffix| (setting, suffix)));
        command.args(forms.map(|(setting, suffix)| {
            let name = format!("{}{suffix}", setting.name);
            Arg::new(name.clone())
                .long(name)
                .value_name(setting.value_name)
                .help(setting.help)
                .help_heading("Link (append -ab or -ba to a name for that direction only)")
                .hide(!suffix.is_empty())
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Settings::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, clap::Error> {
        let names =
            SETTINGS.iter().flat_map(|setting| SUFFIXES.map(|suffix| format!("{}{suffix}", setting.name)));
        let pairs = names.filter_map(|name| {
            let value = matches.get_one::<String>(&name)?.clone();
            Some((name, value))
        });
        Ok(Settings { pairs: pairs.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.pairs.extend(Settings::from_arg_matches(matches)?.pairs);
        Ok(())
    }
}

/// All that a link can be told when it is made.
#[derive(Args)]
pub(crate) struct BuilderArgs {
    #[command(flatten)]
    settings: Settings,
    /// MTU of both ends
    #[arg(long, default_value_t = 1500, value_name = "BYTES", help_heading = "Ends")]
    mtu: u32,
    /// Address of A with prefix length
    #[arg(long, default_value = "10.99.0.1/24", value_name = "CIDR", help_heading = "Ends")]
    addr_a: String,
    /// Address of B with prefix length
    #[arg(long, default_value = "10.99.0.2/24", value_name = "CIDR", help_heading = "Ends")]
    addr_b: String,
    /// Give the ends fd99::1 and fd99::2 too
    #[arg(long, help_heading = "Ends")]
    ipv6: bool,
    /// TCP buffer limit in both namespaces; 0: leave it as it is
    #[arg(long, default_value_t = 128, value_name = "MIB", help_heading = "Ends")]
    tcp_buf_mb: u32,
    /// Name of the device in both namespaces
    #[arg(long, default_value = "wan0", value_name = "NAME", help_heading = "Ends")]
    dev: String,
    /// Real-time priority of the emulator; 0: none
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=99),
          value_name = "PRIO", help_heading = "Emulator")]
    rt: u8,
    /// Pin it to this core
    #[arg(long, value_name = "N", help_heading = "Emulator")]
    cpu: Option<usize>,
    /// Other random choices; a link always starts from its seed
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Emulator")]
    seed: u64,
    /// Pause between rounds under load; larger is less CPU and more error
    #[arg(long, default_value_t = 50, value_name = "US", help_heading = "Emulator")]
    quantum_us: u64,
    /// Spin rather than sleep when the next packet is due this soon
    #[arg(long, default_value_t = 0, value_name = "US", help_heading = "Emulator")]
    spin_us: u64,
    /// 1: never sleep (takes a whole core)
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1),
          value_name = "0|1", help_heading = "Emulator")]
    busy_poll: u8,
}

impl BuilderArgs {
    pub(crate) fn builder(&self) -> Result<Builder, Failure> {
        let mut link = LinkOptions::default();
        link.apply(self.settings.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
        let builder = Link::builder()
            .link_options(link)
            .mtu(self.mtu)
            .addresses(&self.addr_a, &self.addr_b)
            .ipv6(self.ipv6)
            .tcp_buffer_mib(self.tcp_buf_mb)
            .emulator(|emulator| {
                emulator.device.clone_from(&self.dev);
                emulator.rt_priority = self.rt;
                emulator.cpu = self.cpu;
                emulator.seed = self.seed;
                emulator.quantum = Duration::from_micros(self.quantum_us);
                emulator.spin = Duration::from_micros(self.spin_us);
                emulator.busy_poll = self.busy_poll == 1;
            });
        Ok(builder)
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use crate::{Cli, Verb};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn link_options_are_taken_in_all_forms() {
        let line = "linkem run --rtt 12.5 --loss-ab 0.01 --rate-ba 100 --rt 0 -- true --rtt";
        let Verb::Run { link, command } = Cli::try_parse_from(line.split(' ')).unwrap().verb else {
            panic!("not a run");
        };
        let pairs: Vec<(&str, &str)> =
            link.settings.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("rtt", "12.5"), ("rate-ba", "100"), ("loss-ab", "0.01")]);
        assert_eq!((link.rt, command.len()), (0, 2));
    }
}
