/** Log lines that a bundle may contain: those of the agent, and what systemd, this command and Node write when it starts or ends. */
import { readLine } from '../log-lines.ts'

const KNOWN: readonly RegExp[] = [
  /^tallygate: [A-Z_]+: /,
  /^(?:Failed to start|Dependency failed for|(?:Start|Stopp|Reload)(?:ing|ed)) (?:\S+\.service - )?Tallygate agent\.{1,3}$/,
  // systemd also quotes settings of units: only these messages.
  /^\S+\.(?:service|socket): (?:Main process|Control process|Failed (?:at step|with result|to (?:load environment files|run '|set up|locate executable|execute))|Job \S+ failed with result|Deactivated|Scheduled restart|Start request|Consumed|Killing|State |Watchdog|A process of this unit|start operation)/,
  // Of the loader: Node cannot start.
  /^\S*node: (?:error while loading shared libraries: |\S+: version )/,
  // A crash of Node, and the codes of its error.
  /^\s+(?:code: '[A-Z_\d]+'|errno: -?\d+|syscall: '\w+'),?$/,
  /^(?:\s+at |\s*\d+: 0x|node:\S+:\d+$|Node\.js v|FATAL ERROR: |<--- |----- |\[\d+:0x|\(node:\d+\) )/,
]

/** Many programs write such a line. Node writes the stack below it. */
const ERROR = /^\w*Error(?: \[\w+\])?: /
const STACK = /^ {4}at /

/**
 * Other programs can write to the journal of the unit, for example a command in a drop-in.
 * @param next the line below
 */
export function isKnown(line: string, next = ''): boolean {
  if (ERROR.test(line)) return STACK.test(next)
  return readLine(line) !== undefined || KNOWN.some((pattern) => pattern.test(line))
}
