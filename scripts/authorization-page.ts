// The matrix of authorization: each operation of the API documents, for each kind of caller. The page of the
// documentation and the test that sends the requests both read it.
import type { ErrorCode } from '../src/protocol/errors.ts'
import { namesOf } from '../src/cloud/http/scope.ts'
import { ROLES, type Role } from '../src/protocol/service/keys.ts'
import { type CallerKind, type Operation, addressesOf, roleOf } from '../src/cloud/http/operation.ts'

export type Verdict = 'PERMITTED' | ErrorCode

interface KindOfCaller {
  readonly title: string
  /** Fails at authentication with this code, except where an operation accepts such a token. */
  readonly refused?: ErrorCode
  readonly kind?: CallerKind
  /** By OpenID Connect, instead of a registered key. Has no column: the verdicts are those of a key with the same limits. */
  readonly isSignedIn?: true
  /** Its key is for the instance of the request. */
  readonly isOfInstance?: true
  /** Of the administration key. */
  readonly roles?: readonly Role[]
  /** The key is limited to the instance of the request, or to another one. */
  readonly scope?: 'instance' | 'elsewhere'
  /** It is the device of the request, and opened the session of the request. */
  readonly isTheDevice?: true
}

const SIGNED_IN = { isSignedIn: true, kind: 'ADMINISTRATOR', isOfInstance: true } as const

export const CALLERS = {
  none: { title: 'No token', refused: 'TOKEN_MISSING' },
  malformed: { title: 'A malformed token', refused: 'TOKEN_INVALID' },
  metrics: { title: 'The secret in `metrics.token_file`', refused: 'TOKEN_INVALID' },
  unregistered: { title: 'A token of a key that is not registered', refused: 'TOKEN_INVALID' },
  foreignIssuer: { title: 'An ID token of another issuer', refused: 'TOKEN_INVALID' },
  foreignIdToken: { title: 'An ID token for another client of the issuer', refused: 'TOKEN_INVALID' },
  falseIssuer: {
    title: 'A token of a registered key that names the issuer in `oidc.issuer`',
    refused: 'TOKEN_INVALID',
  },
  unmapped: { title: 'An ID token of a user without a role in `oidc.access`', refused: 'SIGN_IN_NOT_MAPPED' },
  enrollment: { title: 'An enrollment token', refused: 'TOKEN_INVALID', kind: 'ENROLLMENT' },
  revoked: { title: 'A revoked device', refused: 'DEVICE_REVOKED' },
  client: { title: 'Client', kind: 'CLIENT', isOfInstance: true },
  foreignClient: { title: 'Client of another instance', kind: 'CLIENT' },
  limitedClient: {
    title: 'Client with a key limited to the instance',
    ...{ kind: 'CLIENT', isOfInstance: true, scope: 'instance' },
  },
  clientLimitedElsewhere: {
    title: 'Client with a key limited to another instance',
    ...{ kind: 'CLIENT', isOfInstance: true, scope: 'elsewhere' },
  },
  device: { title: 'Device', kind: 'DEVICE', isOfInstance: true, isTheDevice: true },
  otherDevice: { title: 'Another device', kind: 'DEVICE', isOfInstance: true },
  foreignDevice: { title: 'Device of another instance', kind: 'DEVICE' },
  administrator: { title: 'Administrator', kind: 'ADMINISTRATOR', isOfInstance: true },
  reader: { title: 'read', kind: 'ADMINISTRATOR', isOfInstance: true, roles: ['read'] },
  operator: { title: 'operator', kind: 'ADMINISTRATOR', isOfInstance: true, roles: ['operator'] },
  rulesEditor: { title: 'rules', kind: 'ADMINISTRATOR', isOfInstance: true, roles: ['rules'] },
  keyKeeper: { title: 'keys', kind: 'ADMINISTRATOR', isOfInstance: true, roles: ['keys'] },
  limited: {
    title: 'Administrator limited to the instance',
    ...{ kind: 'ADMINISTRATOR', isOfInstance: true, scope: 'instance', roles: ['read', 'operator', 'rules'] },
  },
  limitedElsewhere: {
    title: 'Administrator limited to another instance',
    ...{ kind: 'ADMINISTRATOR', isOfInstance: true, scope: 'elsewhere', roles: ['read', 'operator', 'rules'] },
  },
  userWithAllRoles: { title: 'Signed-in user', ...SIGNED_IN },
  userWhoReads: { title: 'Signed-in user', ...SIGNED_IN, roles: ['read'] },
  userWhoOperates: { title: 'Signed-in user', ...SIGNED_IN, roles: ['operator'] },
  userWhoEditsRules: { title: 'Signed-in user', ...SIGNED_IN, roles: ['rules'] },
  userWhoKeepsKeys: { title: 'Signed-in user', ...SIGNED_IN, roles: ['keys'] },
  limitedUser: { title: 'Signed-in user', ...SIGNED_IN, scope: 'instance', roles: ['read', 'operator', 'rules'] },
  userLimitedElsewhere: {
    title: 'Signed-in user',
    ...{ ...SIGNED_IN, scope: 'elsewhere', roles: ['read', 'operator', 'rules'] },
  },
} as const satisfies Readonly<Record<string, KindOfCaller>>

export type CallerName = keyof typeof CALLERS

export const CALLER_NAMES = Object.keys(CALLERS) as CallerName[]

/** What the operation responds to this caller: the code of the refusal, or PERMITTED. */
export function verdictOf(operation: Operation, name: CallerName): Verdict {
  const { principals, path, readsInstanceHeader } = operation
  const caller: KindOfCaller = CALLERS[name]
  if (name === 'none') return 'TOKEN_MISSING'
  if (principals.includes('ENROLLMENT')) return caller.kind === 'ENROLLMENT' ? 'PERMITTED' : 'TOKEN_INVALID'
  if (principals.includes('INTRODUCED_DEVICE')) return caller.isTheDevice === true ? 'PERMITTED' : 'TOKEN_INVALID'
  if (caller.refused !== undefined) return caller.refused
  const { kind, isOfInstance = false, isTheDevice = false } = caller
  if (kind === undefined || !principals.includes(kind)) return 'ACCESS_KIND_WRONG'
  if (kind === 'ADMINISTRATOR') return verdictOfAdministrator(operation, caller)
  if (kind === 'DEVICE' && path.includes('/:deviceId') && !isTheDevice) return 'ACCESS_KIND_WRONG'
  const isInInstance = path.includes('/:instanceId') || (readsInstanceHeader && path.startsWith('/sessions'))
  if (isInInstance && !isOfInstance) return 'INSTANCE_NOT_IN_TOKEN'
  if (isInInstance && caller.scope === 'elsewhere') return 'INSTANCE_NOT_IN_SCOPE'
  if (kind === 'DEVICE' && path.includes('/:sessionId') && !isTheDevice) return 'SESSION_OF_ANOTHER'
  return 'PERMITTED'
}

function verdictOfAdministrator(operation: Operation, { roles, scope }: KindOfCaller): Verdict {
  const role = roleOf(operation)
  if (roles !== undefined && role !== null && role !== 'read' && !roles.includes(role)) return 'ROLE_MISSING'
  if (scope === undefined || operation.concernsCaller === true) return 'PERMITTED'
  const isNamed = namesOf(operation, operation.versions.at(-1) ?? '').length > 0
  return isNamed && scope === 'instance' ? 'PERMITTED' : 'INSTANCE_NOT_IN_SCOPE'
}

const WORDS: Readonly<Record<string, string>> = {
  PERMITTED: '**yes**',
  ACCESS_KIND_WRONG: 'kind',
  INSTANCE_NOT_IN_TOKEN: 'instance',
  SESSION_OF_ANOTHER: 'session',
  ROLE_MISSING: 'role',
  INSTANCE_NOT_IN_SCOPE: 'scope',
}

const wordOf = (verdict: Verdict): string => WORDS[verdict] ?? `\`${verdict}\``

/** The roles that suffice each by itself. */
function roleText(operation: Operation): string {
  if (verdictOf(operation, 'administrator') !== 'PERMITTED') return wordOf(verdictOf(operation, 'administrator'))
  const enough = CALLER_NAMES.filter(
    (name) => ROLES.includes(CALLERS[name].title as Role) && verdictOf(operation, name) === 'PERMITTED',
  )
  const roles = enough.length === ROLES.length ? 'any' : enough.map((name) => `\`${CALLERS[name].title}\``).join(', ')
  return `**yes**, role: ${roles}`
}

/** Callers that nearly every operation treats alike. */
const isAlike = (name: CallerName): boolean => 'refused' in CALLERS[name]

export function authorizationPage(operations: readonly Operation[]): string {
  const shown = CALLER_NAMES.filter(
    (name) => !isAlike(name) && !('isSignedIn' in CALLERS[name]) && !ROLES.includes(CALLERS[name].title as Role),
  )
  const alike = CALLER_NAMES.filter(isAlike).map((name) => {
    const { title, refused } = CALLERS[name] as KindOfCaller & { readonly refused: ErrorCode }
    const others = operations
      .filter((operation) => verdictOf(operation, name) !== refused)
      .map((operation) => `\`${operation.id}\`: ${wordOf(verdictOf(operation, name))}`)
    return `| ${title} | \`${refused}\` | ${others.join(', ')} |`
  })
  const rows = operations.map((operation) => {
    const { id, method, versions } = operation
    const [address = ''] = addressesOf(operation, versions.at(-1) ?? '')
    const cells = shown.map((name) =>
      name === 'administrator' ? roleText(operation) : wordOf(verdictOf(operation, name)),
    )
    return `| \`${id}\` | \`${method} ${address}\` | ${cells.join(' | ')} |`
  })
  return `# Authorization

This page is generated from the operations of the cloud (\`npm run docs\`). A test sends each request of each
[OpenAPI document](openapi/) as each kind of caller, and compares the response with this page.

The caller is identified by the key that signed its [token](../decisions/access-tokens.md):

- **Administrator**: a registered administration key, or a user who [signed in](../how-to/sign-in.md). Both can have
  [roles](../how-to/operate-the-cloud.md#give-administrators-roles), and can be limited to instances. The test sends each request as both, and both get
  the same responses.
- **Client**: a registered client key. The claim \`aud\` of the token lists its instances. The key can be limited to instances too: then
  a request must concern one that is in both.
- **Device**: the key of an enrolled device. It permits what the agent calls: the edge API for the device itself, and opening,
  keeping alive and closing the sessions that the device opened.

## Who may send which token

The claim \`iss\` alone decides how a JWT is checked. If it equals \`oidc.issuer\`, character by character, the token must be an ID token that this
issuer signed. Otherwise, it must be signed with the registered key that its claim \`cnf\` names. No token is tried in both ways.

| Token | Who has it | \`iss\` | Signed with | Accepted by |
| --- | --- | --- | --- | --- |
| Administration token | Administrators and scripts | Any, but not \`oidc.issuer\` | A registered administration key | Operations for administrators |
| ID token | Administrators who signed in | \`oidc.issuer\` | A key that the issuer publishes | Operations for administrators |
| Client token | Clients | Any, but not \`oidc.issuer\` | A registered client key | Operations for clients, in the instances in \`aud\` |
| Device token | Devices | The id of the device | The key of the device | Operations for devices, and the broker |
| Enrollment token | A device before its enrollment | none: not a JWT of this table | The cloud | \`enroll\`, once |
| Secret in \`metrics.token_file\` | Prometheus | none: not a JWT | | \`/metrics\` |

Access tokens and refresh tokens of the issuer are accepted nowhere.

## Tokens that are refused

| Caller | Every operation responds | Except |
| --- | --- | --- |
${alike.join('\n')}

## Operations

**yes**: permitted. Administrators need the role that the column names, or they get \`ROLE_MISSING\`; the two last columns are keys with all roles
but \`keys\`. Otherwise the status is 401 or 403 with the error code:

| Word | Code |
| --- | --- |
${Object.entries(WORDS)
  .filter(([code]) => code !== 'PERMITTED')
  .map(([code, word]) => `| ${word} | \`${code}\` |`)
  .join('\n')}

| Operation | Request (newest version) | ${shown.map((name) => CALLERS[name].title).join(' | ')} |
| --- | --- | ${shown.map(() => '---').join(' | ')} |
${rows.join('\n')}

Outside of these operations, \`/healthz\`, \`/readyz\`, the API documents below \`/docs\` and \`GET /edge/api/v1/sign-in\` (issuer and client id for
\`tallygate login\`) need no token. \`/metrics\` needs the secret in
\`metrics.token_file\`; without that setting, only clients on the same machine can read it.
`
}
