//! The rules of classic options, one by one, with a command that has every kind of them.

use super::*;

static COPY: Command = Command {
    name: "t copy",
    options: &[
        Opt::single("from", "source").required(),
        Opt::flag("force", "do it anyway"),
        Opt::single("to", "target"),
        Opt::list("names", "file name"),
        Opt::flag("verbose", "say more"),
        Opt::single("format", "text or json").ours(),
    ],
};

fn parse(line: &str) -> Result<Parsed, Misuse> {
    let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    COPY.parse(&args)
}

/// What a command line gives, written out in full.
fn check(line: &str, expected: &str) {
    let text = match parse(line) {
        Err(misuse) => misuse.to_string(),
        Ok(Parsed::Help) => "help".to_owned(),
        Ok(Parsed::Run(given)) => {
            let mut words = Vec::new();
            for (option, values) in COPY.options.iter().zip(&given.values) {
                let Some(values) = values else { continue };
                words.push(format!("-{}", option.name));
                words.extend(values.iter().map(|v| v.display().to_string()));
            }
            words.join(" ")
        }
    };
    assert_eq!(text, expected, "of '{line}'");
}

#[test]
fn an_option_may_be_cut_to_any_prefix_that_is_unambiguous() {
    check("-from a -to b", "-from a -to b");
    check("-fr a -t b -v", "-from a -to b -verbose");
    check("--from a --verb", "-from a -verbose");
    check("-f a", "t copy: -f could be any of -from, -force; see 't copy -help'");
    check("-from a -x", "t copy: there is no option -x; see 't copy -help'");
    check("-from a -FORCE", "t copy: there is no option -FORCE; see 't copy -help'");
    check("-from a --", "t copy: there is no option --; see 't copy -help'");
}

#[test]
fn an_option_of_ours_is_written_out_and_makes_no_prefix_ambiguous() {
    check("a -format json", "-from a -format json");
    check("a -form json", "t copy: there is no option -form; see 't copy -help'");
    check("a -fo", "-from a -force");
}

#[test]
fn values_without_an_option_go_in_order_and_flags_may_stand_between() {
    check("a", "-from a");
    check("a b", "-from a -to b");
    check("a -force b", "-from a -force -to b");
    check("-force a b c d -verbose e", "-from a -force -to b -names c d e -verbose");
}

#[test]
fn behind_a_named_option_no_value_is_without_one() {
    check("-from a b", "t copy: -from takes one value; unexpected argument 'b'; see 't copy -help'");
    check("-from a -force b", "t copy: -from takes one value; unexpected argument 'b'; see 't copy -help'");
    check("a -to b c", "t copy: -to takes one value; unexpected argument 'c'; see 't copy -help'");
}

#[test]
fn a_list_takes_all_up_to_the_next_option() {
    check("a -names x y z -force", "-from a -force -names x y z");
    check("a -names x -names y", "-from a -names x y");
    check("a -names x -force y", "-from a -force -names x y");
}

#[test]
fn a_single_option_is_given_once() {
    check("-from a -from b", "t copy: -from takes one value; unexpected argument 'b'; see 't copy -help'");
    check("a -from b", "t copy: -from takes one value; unexpected argument 'b'; see 't copy -help'");
    check("a -force -force", "-from a -force");
}

#[test]
fn a_value_may_be_negative_or_a_dash() {
    check("-from -5 -to -", "-from -5 -to -");
}

#[test]
fn a_value_may_follow_an_equals_sign() {
    check("-from=a --to=b=c -names=x y", "-from a -to b=c -names x y");
    check("a -force=yes", "t copy: -force takes no value; see 't copy -help'");
}

#[test]
fn a_value_must_be_there() {
    check("-from", "t copy: -from needs a value: <source>; see 't copy -help'");
    check("-from -force", "t copy: -from needs a value: <source>; see 't copy -help'");
    check("a -names", "t copy: -names needs a value: <file name>; see 't copy -help'");
    check("", "t copy: -from <source> is missing; see 't copy -help'");
    check("-force", "t copy: -from <source> is missing; see 't copy -help'");
}

#[test]
fn help_comes_before_what_is_missing() {
    for line in ["-help", "-h", "--help", "-force -he"] {
        check(line, "help");
    }
    let help = "Usage: t copy -from <source> [-force] [-to <target>] [-names <file name>+]
         [-verbose] [-format <text or json>] [-help]
Where: -force    do it anyway
       -verbose  say more
";
    assert_eq!(COPY.help(), help);
}

#[test]
fn values_are_found_by_name() {
    let Ok(Parsed::Run(given)) = parse("a -names x y -force") else { panic!() };
    assert_eq!(given.text("from"), Ok(Some("a")));
    assert_eq!(given.text("to"), Ok(None));
    assert_eq!(given.values("names"), ["x", "y"]);
    assert!(given.has("force") && !given.has("verbose"));
}

#[test]
fn a_value_that_is_not_text_is_kept_and_refused_only_as_text() {
    use std::os::unix::ffi::OsStringExt;
    let odd = OsString::from_vec(vec![b'a', 0xff]);
    let Ok(Parsed::Run(given)) = COPY.parse(std::slice::from_ref(&odd)) else { panic!() };
    assert_eq!(given.value("from"), Some(odd.as_os_str()));
    let refused = given.text("from").unwrap_err().to_string();
    assert_eq!(refused, "t copy: the value of -from, 'a\u{fffd}', is not UTF-8; see 't copy -help'");
}
