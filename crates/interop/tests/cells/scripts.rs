//! What the cell scripts take for a machine that is up.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use afar_interop::lab::Lab;
use afar_interop::process;
use afar_interop::suite::{Case, Verdict, Weight};

/// Makes a machine whose first process does nothing but execute another program, a hundred times a second or more, and
/// looks for it all the while; then once it has ended. Its words: the folder of the scripts and the cell's name.
const EXECUTES: &str = r#"
scripts=$1; shift
. "$scripts"/common.sh
set_host srv
trap '"$scripts"/cell-down.sh "$NAME"' EXIT
mkdir -p "$AT"
ip netns add "$NS"
export AGAIN='exec bash -c "$AGAIN" "$0" "$@"'
nsenter --net=/run/netns/"$NS" bash -c "$AGAIN" inside.sh "$NAME" srv 10.88.0.1 &
first=$!
echo $first > "$AT"/init.pid
until [ /proc/$first/ns/net -ef /run/netns/"$NS" ]; do sleep 0.01; done
seen=0
for _ in $(seq 500); do
    [ -z "$(init_pid)" ] || seen=$((seen + 1))
done
kill -KILL $first
wait $first || true
echo "$seen of 500; ended: $(init_pid)"
"#;

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let lab = Arc::clone(lab);
    let name = "scripts/a_machine_is_up_while_its_first_process_executes_another_program";
    vec![Case::new(name, Weight::Waiting, move || executes(&lab))]
}

fn executes(lab: &Lab) -> Verdict {
    lab.links()?;
    let scripts = lab.root().join("interop/cell");
    let cell = format!("interop-{}-executes", std::process::id());
    let mut command = Command::new("bash");
    command.args(["-c", EXECUTES, "bash"]).arg(&scripts).arg(cell);
    let finished = process::run(&mut command, Duration::from_secs(600))?;
    match finished.stdout.trim() {
        "500 of 500; ended:" => Ok(()),
        said => Err(format!("{said}\n{}", finished.stderr).into()),
    }
}
