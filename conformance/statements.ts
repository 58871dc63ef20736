/**
 * The statements of the service's interface and documentation, in the words of this project. `place` is the heading and
 * table row in the interface, or the topic in the service's public documentation. docs/reference/conformance.md lists each
 * statement with its checks.
 */

interface Statement {
  readonly place: string
  readonly says: string
  /** Why no check over HTTP can show it. */
  readonly notShown?: string
}

const INTERFACE = {
  // What the service does
  'does.instances': [
    'What the service does, 2',
    'an account has one or more instances; one of them can be its default',
  ],
  'does.activation': ['What the service does, 3', 'the id of a line item is the activation id'],
  'does.rules': ['What the service does, 4', 'a rule is an ordered list of ALLOW and DENY with conditions and caps'],
  'does.rates': ['What the service does, 5', 'rate tables say how many tokens an item costs'],
  'does.sessions': ['What the service does, 6', 'requests are made in a session or without one'],
  'does.configuration': ['What the service does, 7', 'configuration values control how line items are used'],
  // Addresses
  'addresses.base': ['Addresses, row {base_url}', 'rules of access and sessions are below the segment api'],
  'addresses.floating': ['Addresses, row {floating_base_url}', 'the same operations are below floating/api'],
  'addresses.provisioning': [
    'Addresses, row {provisioning_base_url}',
    'instances, line items, rate tables are below provisioning/api',
  ],
  // Resources
  'instance.id': ['Instance, row id', 'a UUID that the service creates'],
  'instance.shortName': ['Instance, row shortName', 'required, 1 to 100 characters'],
  'instance.accountId': ['Instance, row accountId', 'required, not empty'],
  'instance.defaultInstance': ['Instance, row defaultInstance', 'whether it is the default of its account; read-only'],
  'instance.created': ['Instance, row created', 'time of creation, POSIX milliseconds; read-only'],
  'instance.modified': ['Instance, row modified', 'time of the last change, POSIX milliseconds; read-only'],
  'action.id': ['Action, row id', 'a UUID that the service creates; PUT may contain it'],
  'action.name': ['Action, row name', 'optional label that other line items may use too'],
  'action.conditionId': ['Action, row conditionId', 'names the condition; at most one action of a line item omits it'],
  'action.action': ['Action, row action', 'ALLOW or DENY'],
  'action.allocation': ['Action, row allocation', 'maximum tokens of ALLOW; omitted at most once, for the default'],
  'action.used': ['Action, row used', 'tokens consumed from the allocation; only if there is one'],
  'condition.id': ['Condition, row id', 'a UUID that the service creates'],
  'condition.name': ['Condition, row name', 'label'],
  'condition.operator': ['Condition, row operator', 'AND, IN or NOT'],
  'condition.AND': ['Condition shapes, row AND', 'conditions: all must be true'],
  'condition.IN': ['Condition shapes, row IN', 'property and values'],
  'condition.NOT': ['Condition shapes, row NOT', 'condition: must be false'],
  'lineItem.attributes': [
    'Other resources, line item',
    'attributes accept no undeclared property; overdraftLimit is an integer',
  ],
  'lineItem.resetFrequency': ['Other resources, line item', 'resetFrequency is a string in v1.1'],
  'rateTable.effective': ['Other resources, rate table', 'has a time at which it takes effect'],
  'session.id': ['Other resources, session', 'has a session id'],
  // States
  'states.live': ['States, live', 'IDLE and ACTIVE are live'],
  'states.ended': ['States, not operable', 'a terminated session is not live and accepts no requests'],
  'states.locked': ['States, not operable', 'a locked session accepts no requests and no heartbeats'],
  'states.failed': {
    place: 'States, not operable',
    says: 'failed',
    notShown: 'a session fails because of a fault inside the service, which no caller can cause',
  },
  'states.disconnected': {
    place: 'States, not operable',
    says: 'disconnected',
    notShown: 'it needs a device that keeps a session and is cut off; a client of the interface is not such a device',
  },
  'states.rule1': ['States, rule 1', 'a heartbeat keeps a session active'],
  'states.rule2': ['States, rule 2', 'v1.1: a heartbeat on a session that is not operable fails with 409'],
  'states.rule3': ['States, rule 3', 'a rate table can be deleted before it is in effect'],
  // Endpoints
  'instances.list': [
    'Endpoints, GET instances',
    'pages by next and size; accountId with default=true finds the default',
  ],
  'instances.create': ['Endpoints, POST instances', 'shortName and accountId create an instance'],
  'instances.get': ['Endpoints, GET instances/{instanceId}', 'one instance'],
  'instances.paths': ['Endpoints, instances, paths', 'v1.1 lists and creates below api as well'],
  'lineItems.list': ['Endpoints, GET line-items', 'the mapped line items'],
  'lineItems.put': ['Endpoints, PUT line-items', 'the first call stores, a later one replaces everything'],
  'lineItems.get': ['Endpoints, GET line-items/{lineItemId}', 'one line item'],
  'lineItems.delete': ['Endpoints, DELETE line-items/{lineItemId}', 'deletes it'],
  'actions.post': ['Endpoints, POST actions', 'returns the created actions with id and used'],
  'actions.put': ['Endpoints, PUT actions', 'replaces the ordered list; omitted actions lose their counts'],
  'actions.get': ['Endpoints, GET actions', 'the ordered list'],
  'actions.delete': ['Endpoints, DELETE actions', 'deletes all actions of a line item'],
  'actions.all': ['Endpoints, GET line-items/actions', 'an array whose element has lineItems and next'],
  'conditions.get': ['Endpoints, GET conditions', 'all conditions of the instance'],
  'conditions.post': ['Endpoints, POST conditions', 'returns only the created conditions'],
  'conditions.patch': [
    'Endpoints, PATCH conditions',
    'changes and adds conditions; returns those that were changed or added',
  ],
  'conditions.deleteAll': ['Endpoints, DELETE conditions', 'deletes all conditions of the instance'],
  'conditions.deleteOne': ['Endpoints, DELETE conditions/{conditionId}', 'deletes one'],
  'sessions.post': ['Endpoints, POST sessions', 'creates a session'],
  'sessions.list': ['Endpoints, GET sessions', 'up to 100 live sessions, newest first'],
  'sessions.get': ['Endpoints, GET sessions/{sessionId}', 'details'],
  'sessions.delete': ['Endpoints, DELETE sessions/{sessionId}', 'closes it'],
  'sessions.put': ['Endpoints, PUT sessions/{sessionId}', 'a request in the session'],
  'sessions.heartbeat': ['Endpoints, GET sessions/{sessionId}/heartbeat', 'keeps the session active'],
  'access.oneOff': ['Endpoints, non-session access request', 'a request without a session'],
  'rateTables.get': ['Endpoints, GET rate-tables', 'all tables, in effect or not'],
  'rateTables.post': ['Endpoints, POST rate-tables', 'creates one'],
  'rateTables.delete': ['Endpoints, DELETE rate-tables', 'deletes one that is not yet in effect'],
  'configuration.tolerant': [
    'Configuration, row timezone.tolerant',
    'boolean, false by default: 12 hours before start and after end',
  ],
  // Authentication
  'auth.bearer': ['Authentication, 1', 'Authorization: Bearer and a JWT'],
  'auth.instances': ['Authentication, 2', 'instances need AdministrationAccess'],
  'auth.rules': ['Authentication, 2', 'rules of access accept AdministrationAccess or ClientAccess'],
  'auth.keys': ['Authentication, 3', 'one area manages keys'],
  // Errors
  'errors.put': ['Errors, 1', '400 on PUT line-items only: an array of strings, errors in v1.0 and message in v1.1'],
  'errors.heartbeat': ['Errors, 2', 'v1.0: 403 when terminated; v1.1: 409 with the state in the message'],
  'errors.locked': ['Errors, 2', '409 on a locked session, in v1.1 with the state in the message'],
  'errors.codes': ['Errors, 3', 'status codes of items have three digits in v1.0 and four in v1.1'],
  // Limits
  'limits.sessions': ['Limits, live sessions', 'at most 100, newest first'],
  'limits.shortName': ['Limits, shortName length', '1 to 100 characters'],
  'limits.accountId': ['Limits, accountId', 'not empty'],
  'limits.tolerant': ['Limits, timezone.tolerant window', '12 hours before start and 12 hours after end'],
  'limits.size': ['Limits, page size', 'a request that the service may ignore'],
  // Versioning
  'versions.segment': ['Versioning, 1', 'the version is a path segment, v1.0 or v1.1'],
  'versions.put': ['Versioning, 2', 'PUT line-items: message instead of errors'],
  'versions.codes': ['Versioning, 2', 'item codes with four digits instead of three'],
  'versions.heartbeat': ['Versioning, 2', 'heartbeat: 409 instead of 403'],
  'versions.resetFrequency': ['Versioning, 2', 'resetFrequency is undeclared in v1.0 and a string in v1.1'],
  'endpoints.json': ['Endpoints', 'bodies are application/json'],
  'does.backOffice': {
    place: 'What the service does, 8',
    says: 'objects created here are not reflected in a back-office system; provisioned line items go to the default instance',
    notShown: 'a back-office system is another interface',
  },
  'limits.consumption': ['Limits, consumption limits', 'they regulate how quickly requesters consume'],
  'limits.rate': { place: 'Limits, API calls', says: 'not shown', notShown: 'the interface defines no limit' },
  'events.none': { place: 'Events', says: 'not shown', notShown: 'the interface defines no event' },
} as const satisfies Record<string, readonly [place: string, says: string] | Statement>

const DOCUMENTED = {
  'doc.paging': ['Conventions', 'next and size page through lists; next 0 is the end'],
  'doc.ms': ['Conventions', 'instants are POSIX milliseconds'],
  'doc.correlation': ['Conventions', 'each access request has a different correlation id'],
  'doc.tokenTime': ['Tokens', 'an expired token is refused'],
  'doc.tokenKey': ['Tokens', 'a token with an unknown key, or signed by another key, is refused'],
  'doc.aud': ['Tokens', 'a client token is valid only for the instances in its aud'],
  'doc.instanceHeader': ['Tokens', 'a client token needs x-instance-id on sessions; it must be in aud'],
  'doc.adminOnly': [
    'Tokens',
    'PUT and DELETE of line items, rate tables, configuration, keys need AdministrationAccess',
  ],
  'doc.either': ['Tokens', 'line items are read, and sessions and requests are made, with either kind'],
  'doc.keysPut': ['Keys', 'PUT of keys accepts an array of id and publicKey; the same id replaces a key'],
  'doc.keysList': ['Keys', 'GET public-keys lists both types without secrets'],
  'doc.keysDelete': ['Keys', 'DELETE of a key; its tokens are refused'],
  'doc.lastKey': ['Keys', 'the last administration key cannot be deleted'],
  'doc.record': ['Line items', 'GET returns what PUT stored, with used'],
  'doc.obsolete': ['Line items', 'OBSOLETE is final; INACTIVE and OBSOLETE require an existing line item'],
  'doc.validator': ['Line items', 'problems have the wording of the JSON schema validator, with a path'],
  'doc.inactive': ['Line items', 'INACTIVE serves no request; DEPLOYED again resumes'],
  'doc.window': ['Line items', 'usable from start to end'],
  'doc.overdraftNumber': ['Overdraft', 'Number: quantity and overdraftLimit may be used'],
  'doc.overdraftUnlimited': ['Overdraft', 'Unlimited: never exhausted'],
  'doc.overdraftNone': ['Overdraft', 'none: exhausted at the quantity'],
  'doc.series': ['Rate tables', 'the tables of its series price a line item'],
  'doc.latest': ['Rate tables', 'the most recent table in effect applies'],
  'doc.exactVersion': ['Rate tables', 'items match by name and exact version'],
  'doc.tableSaved': ['Rate tables', '201 with a message; 409 with error when series and version exist'],
  'doc.tableDelete': ['Rate tables', 'DELETE by version and series: 204, 404, 409 when in effect'],
  'doc.noSeries': ['Rate tables', 'an empty series means the tables without a series'],
  'doc.formulaOnly': ['Rate tables', 'v1.1: an item has a rate or a formula, never both and never neither'],
  'doc.formula': ['Rate tables', 'v1.1: functions, operators, parentheses, negative and decimal numbers of formulas'],
  'doc.variables': [
    'Rate tables',
    'v1.1: variables of a formula come from the request, and their case does not matter',
  ],
  'doc.or': ['Conditions', 'OR: any condition must be true'],
  'doc.dictionary': ['Conditions', 'are evaluated on the dictionary of the requester'],
  'doc.referenced': ['Conditions', 'cannot be deleted while an action refers to them'],
  'doc.cap': ['Actions', 'an allocation caps how much matching requests use of that line item'],
  'doc.unmatched': ['Actions', 'a requester that matches no entry of a list without default is refused'],
  'doc.keepsUsed': ['Actions', 'PUT with the id of an action keeps its counts'],
  'doc.status101': ['Access requests', '101: Successfully checked out'],
  'doc.status102': ['Access requests', '102: No Status, for an item that failed because of another'],
  'doc.status201': ['Access requests', '201: Item not found in any effective rate table'],
  'doc.failedItem': ['Access requests', 'a failed item has no line items and a charge of 0'],
  'doc.charge': ['Access requests', 'charge is count times rate; used rises by it'],
  'doc.order': ['Access requests', 'earliest end first, then earliest start'],
  'doc.split': ['Access requests', 'a charge may be split: 3 and 7 from the first of 10 tokens, 49 from the second'],
  'doc.bestEffort': ['Access requests', 'one-off: each item separately'],
  'doc.allOrNothing': ['Access requests', 'in a session: all or nothing'],
  'doc.itemOrder': ['Access requests', 'the response keeps the order of the request'],
  'doc.requestedVersion': ['Access requests', 'requestedVersion is another spelling of version'],
  'doc.fractions': ['Access requests', 'counts, rates and charges may be fractional'],
  'doc.sessionIdle': ['Sessions', 'POST: IDLE, nothing charged'],
  'doc.sessionList': ['Sessions', 'a listed session has state, chargedUntil, lastHeartBeat, lastAccessRequest'],
  'doc.sessionItems': ['Sessions', 'GET of one shows its items'],
  'doc.granted': ['Sessions', 'a granted request is charged and makes the session ACTIVE'],
  'doc.replace': [
    'Sessions',
    'the next granted request replaces the items: the rest is refunded, the new items are charged in full',
  ],
  'doc.halt': ['Sessions', 'an empty request refunds the rest and makes it IDLE'],
  'doc.deniedKeep': ['Sessions', 'denied with rollbackOnDeny: nothing changes'],
  'doc.deniedEnd': ['Sessions', 'denied without rollbackOnDeny: refunded and TERMINATED'],
  'doc.closeRefund': ['Sessions', 'DELETE refunds by unused time'],
  'doc.refundWhere': ['Sessions', 'refunds go to the line items that were charged'],
  'doc.interval': ['Automatic charge', 'every hour after the last granted request'],
  'doc.exampleClose': ['Automatic charge', 'charges at 0, 60, 120; closed at 140: 40/60 of the third is refunded'],
  'doc.exampleBasket': [
    'Automatic charge',
    'charges at 0, 60, 120; other items at 140: 40/60 refunded, charged in full, next at 200',
  ],
  'doc.exhausted': ['Automatic charge', 'not enough tokens at the end of an interval: TERMINATED'],
  'doc.idleNoCharge': ['Automatic charge', 'no automatic charge while IDLE'],
  'doc.period': ['Automatic charge', 'v1.1: session.charge.period, PT10M to PT24H, PT1H by default'],
  'doc.heartbeatMissed': [
    'Heartbeat',
    'no heartbeat in 30 minutes after an automatic charge: TERMINATED, that charge refunded in full',
  ],
  'doc.heartbeatInitial': ['Heartbeat', 'no heartbeat is needed after the first charge'],
  'doc.heartbeatIdle': ['Heartbeat', 'no heartbeat is needed while IDLE'],
  'doc.heartbeat204': ['Heartbeat', '204 means: continue'],
  'doc.idledOut': ['Sessions', 'IDLE for 30 days: TERMINATED'],
  'doc.configGet': ['Configuration', 'an array of name, value, and modified and updatedBy if changed'],
  'doc.configPatch': ['Configuration', 'PATCH changes values by name'],
  'doc.limitRequester': ['Consumption limits', 'for each requester and line item; others are not affected'],
  'doc.limitFresh': ['Consumption limits', 'consumption before a limit was set does not count'],
  'doc.limitReset': [
    'Consumption limits',
    'the counter resets to zero at the next reset, monthly on the same day of the month',
  ],
  'doc.usageRows': ['Usage', 'charges, automatic charges, refunds and refusals are rows with the known columns'],
  'doc.usageCorrelation': ['Usage', 'rows have the correlation id of their request; each refund has a different one'],
  'doc.refundInactive': ['Line items', 'refunds also go to a line item that is no longer usable'],
} as const satisfies Record<string, readonly [place: string, says: string] | Statement>

export type StatementId = keyof typeof INTERFACE | keyof typeof DOCUMENTED

const all: Readonly<Record<string, readonly [place: string, says: string] | Statement>> = {
  ...INTERFACE,
  ...DOCUMENTED,
}

function isPair(value: readonly [string, string] | Statement): value is readonly [string, string] {
  return Array.isArray(value)
}

/** All statements, in the order of the documents. */
export const STATEMENTS: ReadonlyMap<StatementId, Statement & { readonly document: 'interface' | 'documentation' }> =
  new Map(
    (Object.keys(all) as StatementId[]).map((id) => {
      const value = all[id]
      if (value === undefined) throw new Error(`there is no statement ${id}`)
      const statement = isPair(value) ? { place: value[0], says: value[1] } : value
      return [id, { ...statement, document: id in INTERFACE ? 'interface' : 'documentation' }] as const
    }),
  )
