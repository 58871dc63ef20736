/** The device's status in one sentence and the next steps; being offline is no problem while decisions are possible. */
import { isLineAccount, parseAccount } from '../../core/accounts/account.ts'
import { available } from '../../core/accounts/grant.ts'
import { accountInWords, roughly, tokensInWords } from '../../core/accounts/in-words.ts'
import { shellWord } from '../../protocol/shell-quoted.ts'
import type { DeviceSuspension } from '../../protocol/edge/device-suspension.ts'
import { ERRORS, remedyAfter } from '../../protocol/errors.ts'
import type { AgentStatus, AgentStatusWire } from '../../protocol/local/status.ts'
import { REFUSED_KEYS } from '../runtime/health.ts'
import type { DeviceReportWire } from '../../protocol/local/report.ts'

/** As sent, or parsed. */
type Status = AgentStatusWire | AgentStatus
type HealthStatus = DeviceReportWire['health']
type Sentence = (sentence: string, ...steps: string[]) => HealthStatus

const refusing: Sentence = (sentence, ...steps) => ({ level: 'refusing', sentence, steps })
const attention: Sentence = (sentence, ...steps) => ({ level: 'attention', sentence, steps })

const ENROLL = [
  'On a machine with an administration key: `tallygate devices enrollment-token --instance INSTANCE --name NAME | install -m 600 /dev/stdin token`',
  'On this device: save this token as /etc/tallygate/enrollment-token, for the user of the agent only (with the package: `sudo install -m 400 -o tallygate token /etc/tallygate/enrollment-token`), or set TALLYGATE_AGENT_ENROLLMENT_TOKEN or enrollment.token_file',
  'Restart the agent (with systemd: `sudo systemctl restart tallygate-agent`)',
]
const ENROLL_AGAIN = ['To use it again, enroll it again:', ...ENROLL]
const STOP = 'Stop the agent (with systemd: `sudo systemctl stop tallygate-agent.socket tallygate-agent`)'
const START = 'Start the agent (with systemd: `sudo systemctl start tallygate-agent`)'
/** Of a device whose id cannot be used again. */
const START_ANEW = [
  STOP,
  'Keep its state, which may contain unbilled usage: rename the directory of the setting state.directory (with the package: `sudo mv /var/lib/tallygate/agent /var/lib/tallygate/agent.old`)',
  'Enroll it as a new device:',
  ...ENROLL.slice(0, 2),
  START,
]
const OTHER_TOKEN =
  'If the enrollment token came from the wrong cloud, replace it with a token of the cloud that enrolled this device, and restart the agent. Otherwise:'
const FIND_CLOUD = '`tallygate doctor` shows where the connection to the cloud fails'

export function healthStatusOf(status: Status): HealthStatus {
  return stoppedStatus(status) ?? supplyStatus(status) ?? problemStatus(status) ?? workingStatus(status)
}

/** Whether a step is the head of those that follow it. */
export function isHead(step: string): boolean {
  return step.endsWith(':')
}

/** Whether the health status of a device is about this condition, and its steps contain the remedy. */
export function isRemedied(condition: Status['conditions'][number], status: Status): boolean {
  const { sentence } = healthStatusOf(status)
  const isSame = (conditions: Status['conditions']): boolean =>
    healthStatusOf({ ...status, conditions }).sentence === sentence
  return isSame([condition]) && !isSame(status.conditions.filter((each) => each !== condition))
}

/** The first reason for which the device refuses every request. */
function stoppedStatus(status: Status): HealthStatus | null {
  return (
    notEnrolledStatus(status) ??
    unknownStatus(status) ??
    suspendedStatus(status) ??
    unwritableStatus(status) ??
    terminatedStatus(status) ??
    stoppedByKeyStatus(status) ??
    fencedStatus(status) ??
    noRulesStatus(status) ??
    notAttachedStatus(status) ??
    staleRulesStatus(status)
  )
}

function unknownStatus({ conditions }: Status): HealthStatus | null {
  const unknown = conditions.find(({ code }) => code === 'DEVICE_UNKNOWN')
  if (unknown === undefined) return null
  return refusing(`${unknown.message} This device refuses every request.`, OTHER_TOKEN, ...START_ANEW)
}

function suspendedStatus(status: Status): HealthStatus | null {
  const { suspension } = status
  if (suspension === null) return null
  const unlock = `An administrator unlocks it with \`tallygate devices unlock ${nameOf(status)}\``
  const steps = suspension.state === 'LOCKED' ? [unlock] : ENROLL_AGAIN
  return refusing(`${suspensionSentence(suspension)} It refuses every request.`, ...steps)
}

function unwritableStatus({ conditions }: Status): HealthStatus | null {
  const unwritable = conditions.find(({ subject }) => subject === 'ledger')
  if (unwritable === undefined) return null
  if (unwritable.message.includes('disk is full')) {
    return refusing(
      'The disk of this device is full, so it refuses every request.',
      'Free some space: `df -h` shows the disks. The device then continues by itself.',
    )
  }
  return refusing(
    'This device cannot record anything, so it refuses every request.',
    '`tallygate doctor` examines the disk and the ledger',
  )
}

function terminatedStatus({ conditions }: Status): HealthStatus | null {
  const terminated = conditions.find(({ subject, code }) => subject === 'attach' && code === 'DEVICE_TERMINATED')
  if (terminated === undefined) return null
  return refusing(`${terminated.message} It refuses every request.`, ...ENROLL_AGAIN)
}

/** With a refused key, the device cannot attach again or get newer rules. */
function stoppedByKeyStatus(status: Status): HealthStatus | null {
  const refused = refusedKey(status)
  const needsCloud = status.fenced || status.epoch === 0 || areRulesStale(status)
  if (refused === undefined || !needsCloud) return null
  return refusing(`${refusedKeySentence(refused)}: it refuses every request.`, ...refusedKeySteps(status, refused))
}

function fencedStatus({ fenced, conditions }: Status): HealthStatus | null {
  if (!fenced) return null
  const sentence =
    'The cloud has stopped this device, because another one may use the same ledger. It refuses every request until it has attached again.'
  const copied = conditions.find(({ code }) => code === 'ATTACH_TOO_OFTEN')
  if (copied === undefined) return refusing(sentence, FIND_CLOUD)
  return refusing(`${sentence} ${copied.message}`, ERRORS.ATTACH_TOO_OFTEN.remedy)
}

function noRulesStatus({ policies }: Status): HealthStatus | null {
  if (policies.some(({ applied }) => applied > 0)) return null
  return refusing('This device has no rules yet: it refuses every request until the cloud has sent them.', FIND_CLOUD)
}

function notAttachedStatus({ epoch }: Status): HealthStatus | null {
  if (epoch !== 0) return null
  return refusing(
    'This device is not attached to the cloud: it refuses every request until it has reached the cloud.',
    FIND_CLOUD,
  )
}

function staleRulesStatus(status: Status): HealthStatus | null {
  if (!areRulesStale(status)) return null
  // The cloud confirms only its newest rules.
  const newer = status.conditions.find(({ subject }) => subject.startsWith('policy '))
  return refusing(
    'The rules of this device are too old: it refuses every request until the cloud has confirmed them or sent newer ones.',
    newer === undefined ? FIND_CLOUD : remedyAfter(newer.code),
  )
}

/** Until the grant or the rules of an instance end; 0: they have ended. */
export function offlineMs({ grant, policies }: Pick<Status, 'grant' | 'policies'>): number {
  // Rules that have ended already are a condition.
  const usable = policies.map(({ remainingMs }) => remainingMs).filter((ms) => ms > 0)
  return usable.length === 0 ? 0 : Math.min(grant?.remainingMs ?? 0, ...usable)
}

/** Null: there are no rules, or they end about when the grant ends, or later. */
export function ageOfRules(
  { applied, remainingMs }: Status['policies'][number],
  { grant }: Pick<Status, 'grant'>,
): string | null {
  if (applied === 0) return null
  if (remainingMs === 0) return 'too old'
  if (grant === null || remainingMs >= grant.remainingMs) return null
  const left = roughly(remainingMs)
  return left === roughly(grant.remainingMs) ? null : `usable for another ${left} without the cloud`
}

/** Of all instances of the device. */
export function areRulesStale({ policies, conditions }: Pick<Status, 'policies' | 'conditions'>): boolean {
  const stale = conditions.filter(({ code }) => code === 'POLICY_STALE').length
  return stale > 0 && stale === policies.filter(({ applied }) => applied > 0).length
}

function notEnrolledStatus({ deviceId, conditions }: Status): HealthStatus | null {
  if (deviceId !== null) return null
  const damaged = conditions.find(({ code }) => code === 'LEDGER_SALVAGED')
  if (damaged !== undefined) {
    return refusing(
      'The ledger of this device was damaged, and its enrollment is lost with it: it grants nothing.',
      'With a backup:',
      STOP,
      'Restore it, as root or as the user of the agent: `tallygate restore BACKUP`',
      START,
      'Without a backup, enroll the device again:',
      ...ENROLL,
    )
  }
  const reason = conditions.find(({ subject }) => subject === 'enrollment')
  const because = reason === undefined ? '' : ` ${reason.message}`
  const steps =
    reason?.code === 'CLOUD_UNREACHABLE' || reason?.code === 'ANSWER_UNEXPECTED'
      ? ['Connect this device to the network of the cloud. It enrolls as soon as the cloud responds', FIND_CLOUD]
      : ENROLL
  return refusing(`This device is not enrolled yet: it grants nothing.${because}`, ...steps)
}

function supplyStatus(status: Status): HealthStatus | null {
  return (
    refusedKeyStatus(status) ??
    grantStatus(status) ??
    offlineStatus(status) ??
    lockedSessionsStatus(status) ??
    tokensStatus(status)
  )
}

function grantStatus({ grant, connected }: Status): HealthStatus | null {
  if (grant === null && !connected) {
    return refusing('This device has no grant, and the cloud is out of reach.', FIND_CLOUD)
  }
  if (grant?.remainingMs !== 0) return null
  if (connected) {
    return attention('The grant of this device has expired; it asks the cloud for another one.', FIND_CLOUD)
  }
  return refusing(
    'The grant of this device has expired: it refuses every charge until it reaches the cloud.',
    FIND_CLOUD,
  )
}

function offlineStatus(status: Status): HealthStatus | null {
  if (status.connected) return null
  const { isDry, atHand } = balanceOf(status)
  if (isDry) {
    return refusing(
      'This device is offline and has used up its tokens: it refuses every charge until it reaches the cloud.',
      FIND_CLOUD,
    )
  }
  return attention(
    `This device is offline and continues to decide, with ${atHand}, for another ${roughly(offlineMs(status))}.`,
    FIND_CLOUD,
  )
}

function lockedSessionsStatus({ sessions }: Status): HealthStatus | null {
  const locked = sessions.filter(({ state }) => state === 'LOCKED')
  if (locked.length === 0) return null
  return attention(
    'An administrator has locked the session of this device in the cloud.',
    ...locked.map(({ sessionId }) => `An administrator unlocks it with \`tallygate sessions unlock ${sessionId}\``),
  )
}

function tokensStatus(status: Status): HealthStatus | null {
  const { conditions } = status
  const usedUp = conditions.filter(({ code }) => code === 'TOKENS_USED_UP')
  if (!balanceOf(status).isDry) {
    const [low] = [...usedUp, ...conditions.filter(({ code }) => code === 'TOKENS_LOW')]
    return low === undefined ? null : attention(low.message, moreTokens(status, low))
  }
  if (usedUp.length > 0) {
    return refusing(
      'The tokens of this device are used up, in the cloud too: it refuses every charge.',
      ...usedUp.map((each) => moreTokens(status, each)),
    )
  }
  return attention(
    'This device is connected, and has no tokens: it asks the cloud with each request.',
    '`tallygate line-items list` shows an administrator what the cloud has',
  )
}

function moreTokens({ accounts }: Status, { subject }: AgentStatusWire['conditions'][number]): string {
  const lineItem = subject.replace(/^tokens of /, '')
  const [pool] = accounts.flatMap(({ account }) => {
    const parsed = parseAccount(account)
    return parsed?.kind === 'line' && parsed.lineItemId === lineItem ? [parsed] : []
  })
  const instance = pool === undefined ? '' : ` --instance ${pool.instanceId}`
  const set = `tallygate line-items set ${shellWord(lineItem)} --quantity TOTAL${instance}`
  const drain = 'tallygate devices drain DEVICE'
  return `An administrator raises the quantity to a new total with \`${set}\`, or takes tokens back from another device with \`${drain}\``
}

type RefusedKey = keyof typeof REFUSED_KEYS

function refusedKey({ conditions }: Pick<Status, 'conditions'>): RefusedKey | undefined {
  return (Object.keys(REFUSED_KEYS) as RefusedKey[]).find((known) => conditions.some(({ code }) => code === known))
}

function refusedKeyStatus(status: Status): HealthStatus | null {
  const refused = refusedKey(status)
  if (refused === undefined) return null
  const { isDry, atHand } = balanceOf(status)
  const remaining = offlineMs(status)
  const known = refusedKeySentence(refused)
  const steps = refusedKeySteps(status, refused)
  return isDry || remaining === 0
    ? refusing(`${known}, and no tokens are left: it refuses every charge.`, ...steps)
    : attention(`${known}: it delivers no usage, and can spend ${atHand} for another ${roughly(remaining)}.`, ...steps)
}

function refusedKeySentence(refused: RefusedKey): string {
  return `The key of this device ${REFUSED_KEYS[refused]}`
}

function refusedKeySteps(status: Status, refused: RefusedKey): readonly string[] {
  return [...(refused === 'DEVICE_REVOKED' ? whoRevoked(status) : fitKey(status)), ...START_ANEW]
}

function whoRevoked(status: Status): readonly string[] {
  return [`\`tallygate audit list --device ${nameOf(status)}\` shows who revoked it`]
}

function fitKey(status: Status): readonly string[] {
  return [
    'If the key file came from a backup, put the newest one back: `tallygate doctor` compares it with the ledger',
    `If that key is lost, or was copied, an administrator revokes the device: \`tallygate devices revoke ${nameOf(status)}\``,
  ]
}

function problemStatus({ conditions }: Status): HealthStatus | null {
  const damaged = conditions.find(({ code }) => code === 'LEDGER_SALVAGED')
  if (damaged !== undefined) {
    return attention(
      'The ledger of this device was damaged. The device works with a new one.',
      ERRORS.LEDGER_SALVAGED.remedy,
      '`tallygate doctor` names the file, and examines the disk',
    )
  }
  const clock = conditions.find(({ code }) => code === 'CLOCK_WRONG')
  if (clock !== undefined) {
    return attention(
      'The clock of this machine is wrong. Decisions use the right time, from the cloud.',
      ERRORS.CLOCK_WRONG.remedy,
    )
  }
  const [first] = conditions
  if (first === undefined) return null
  const many = conditions.length === 1 ? 'a problem' : `${conditions.length} problems. The first`
  const remedy = remedyAfter(first.code)
  return attention(
    `This device is working, with ${many}: ${first.message.replace(/[^.?]$/, '$&.')}`,
    ...(remedy === '' ? [] : [remedy]),
    '`tallygate doctor` examines the device',
  )
}

function workingStatus(status: Status): HealthStatus {
  const sentence = `This device is working: connected, with ${balanceOf(status).atHand}.`
  return { level: 'ok', sentence, steps: [] }
}

function balanceOf({ accounts }: Status): { readonly isDry: boolean; readonly atHand: string } {
  const lines = accounts.filter(({ account }) => isLineAccount(account))
  const finiteLines = lines.filter(({ unlimited }) => !unlimited)
  const left = finiteLines.reduce((sum, account) => sum + available(countersOf(account)), 0n)
  const finite = `${tokensInWords(left)} tokens`
  const [unlimited, ...others] = lines.filter((each) => each.unlimited)
  if (unlimited === undefined) return { isDry: left === 0n, atHand: finite }
  const which = others.length === 0 ? accountInWords(unlimited.account) : `${others.length + 1} line items`
  return {
    isDry: false,
    atHand: finiteLines.length === 0 ? 'unlimited tokens' : `${finite} and ${which} without limit`,
  }
}

function nameOf({ name, deviceId }: Status): string {
  return name !== null && /^[\w.-]+$/.test(name) ? name : (deviceId ?? '')
}

export function suspensionSentence({ state, since }: DeviceSuspension): string {
  const done = state === 'LOCKED' ? 'has locked this device' : 'has ended the service of this device'
  return `An administrator ${done}, at ${new Date(since).toISOString()}.`
}

/** Without notifications, a response that is older, ms, does not show that the cloud still responds. */
const RECENT_MS = 120_000

export function cloudInWords(
  status: Pick<AgentStatusWire, 'connected' | 'conditions' | 'lastContactAt' | 'push' | 'clock'>,
): string {
  const { connected, lastContactAt, push, clock } = status
  if (!connected) return 'not connected'
  const refused = refusedKey(status)
  if (refused !== undefined) return `responds, but refuses this device: its key ${REFUSED_KEYS[refused]}`
  const isRecent = lastContactAt !== null && clock.now - lastContactAt <= RECENT_MS
  return isRecent || push === 'CONNECTED' ? 'connected' : 'responded to the last sync'
}

/** Above this uncertainty, ms, decisions may differ from those at the true time. */
const EXACT_MS = 60_000

export function clockHealth({ earliest, latest }: AgentStatusWire['clock']): DeviceReportWire['clock'] {
  if (latest === null) return { health: 'unbounded', widthMs: null }
  const widthMs = Math.max(0, latest - earliest)
  return { health: widthMs <= EXACT_MS ? 'exact' : 'rough', widthMs }
}

export function inWords(ms: number): string {
  return ms < 2_000 ? 'a second' : roughly(ms)
}

export function countersOf({ granted, used, refunded, returned }: Status['accounts'][number]) {
  return { granted: BigInt(granted), used: BigInt(used), refunded: BigInt(refunded), returned: BigInt(returned) }
}
