// Ends the processes that tests have started when the process of the tests ends, in whatever way: vitest may kill it. A shell
// notices that its input ends, and knows which processes still run.
import { type ChildProcess, spawn } from 'node:child_process'
import { subscribe } from 'node:diagnostics_channel'

const SCRIPT = `
pids=' '
while read -r change pid; do
  case $change in
  begun) pids="$pids$pid " ;;
  ended) pids="\${pids%% $pid *} \${pids#* $pid }" ;;
  esac
done
[ "$pids" = ' ' ] || { kill $pids; sleep 5; kill -9 $pids; }`

const STARTED = Symbol.for('tallygate.end-children')

// Files of tests share their process.
if (!(STARTED in process)) {
  Object.assign(process, { [STARTED]: true })
  // In a separate process group: Ctrl-C ends only that of the tests.
  const shell = spawn('sh', ['-c', SCRIPT], { stdio: ['pipe', 'ignore', 'ignore'], detached: true })
  shell.unref()
  shell.stdin.on('error', () => undefined)
  const tell = (change: 'begun' | 'ended', { pid }: ChildProcess): void => void shell.stdin.write(`${change} ${pid}\n`)
  subscribe('child_process', (message) => {
    const { process: child } = message as { readonly process: ChildProcess }
    child.once('spawn', () => tell('begun', child))
    child.once('exit', () => tell('ended', child))
  })
}
