/** The demo site: bodies of the administration API. During the day, every reason for a refusal occurs. */

export interface Person {
  readonly type: 'device' | 'user'
  readonly dictionary: Readonly<Record<string, string>>
}

export const REQUESTERS: Readonly<Record<string, Person>> = {
  'laser-1': { type: 'device', dictionary: { role: 'machine', area: 'hall', department: 'production' } },
  'laser-2': { type: 'device', dictionary: { role: 'machine', area: 'hall', department: 'production' } },
  'printer-a': { type: 'device', dictionary: { role: 'machine', area: 'hall', department: 'production' } },
  'printer-b': { type: 'device', dictionary: { role: 'machine', area: 'lab', department: 'design' } },
  'mill-1': { type: 'device', dictionary: { role: 'machine', area: 'hall', department: 'production' } },
  'kiln-1': { type: 'device', dictionary: { role: 'machine', area: 'yard', department: 'production' } },
  'kiln-2': { type: 'device', dictionary: { role: 'machine', area: 'yard', department: 'production' } },
  'gauge-7': { type: 'device', dictionary: { role: 'machine', area: 'lab', department: 'quality' } },
  'anna.keller': { type: 'user', dictionary: { role: 'member', area: 'lab', department: 'design' } },
  'ben.ojo': { type: 'user', dictionary: { role: 'member', area: 'hall', department: 'sales', costCentre: '4711' } },
  'carla.rossi': { type: 'user', dictionary: { role: 'member', area: 'hall', department: 'production' } },
  'emil.novak': { type: 'user', dictionary: { role: 'member', area: 'lab', department: 'quality' } },
  'fay.lind': { type: 'user', dictionary: { role: 'apprentice', area: 'hall', department: 'training' } },
  'gus.berg': { type: 'user', dictionary: { role: 'apprentice', area: 'hall', department: 'training' } },
  'hana.sato': { type: 'user', dictionary: { role: 'contractor', area: 'lab' } },
  'ivan.petrov': { type: 'user', dictionary: { role: 'contractor', area: 'remote' } },
  'jo.marsh': { type: 'user', dictionary: { role: 'member', area: 'hall', status: 'suspended' } },
}

type Condition =
  | { readonly operator: 'AND' | 'OR'; readonly conditions: readonly Condition[] }
  | { readonly operator: 'NOT'; readonly condition: Condition }
  | { readonly operator: 'IN'; readonly property: string; readonly values: readonly string[] }

const within = (property: string, ...values: string[]): Condition => ({ operator: 'IN', property, values })

export const CONDITIONS = {
  suspended: within('status', 'suspended'),
  'contractor off the premises': {
    operator: 'AND',
    conditions: [within('role', 'contractor'), { operator: 'NOT', condition: within('area', 'hall', 'lab', 'yard') }],
  },
  training: { operator: 'AND', conditions: [within('department', 'training'), within('role', 'apprentice')] },
  'design work': { operator: 'OR', conditions: [within('department', 'design'), within('costCentre', '4711')] },
} as const satisfies Readonly<Record<string, Condition>>

interface Rule {
  readonly name: string
  readonly action: 'ALLOW' | 'DENY'
  /** None: the default rule. */
  readonly condition?: keyof typeof CONDITIONS
  readonly allocation?: number
}

interface LineItem {
  readonly activationId: string
  readonly series: string
  readonly quantity: number
  readonly overdraft?: number
  /** Days from the day of the demo. */
  readonly startsIn: number
  readonly endsIn: number
  /** In order; none: everybody may draw on it. */
  readonly rules: readonly Rule[]
  /** Most tokens of one requester until the next reset, which is not on the day of the demo. */
  readonly monthlyLimit?: number
}

/** What the session of the demo is charged for, and what pays for it: nothing else draws on it. */
export const SESSION_LINE_ITEM = 'LW-WORKBENCH'
export const SESSION_ITEM = { name: 'Workbench', version: '1.0' } as const

const keepOut: readonly Rule[] = [
  { name: 'Suspended members', action: 'DENY', condition: 'suspended' },
  { name: 'Contractors from afar', action: 'DENY', condition: 'contractor off the premises' },
]

export const LINE_ITEMS: readonly LineItem[] = [
  // Ends first, so it is used first; when it is used up, one request is split with the annual contract.
  {
    activationId: 'LW-SPRING-OFFER',
    series: 'workshop',
    quantity: 1_600,
    startsIn: -40,
    endsIn: 20,
    rules: [
      ...keepOut,
      { name: 'Apprentices use the annual contract', action: 'DENY', condition: 'training' },
      { name: 'Everybody else', action: 'ALLOW' },
    ],
  },
  // The apprentices' allocation runs out during the day.
  {
    activationId: 'LW-ANNUAL-CONTRACT',
    series: 'workshop',
    quantity: 9_000,
    startsIn: -60,
    endsIn: 305,
    rules: [
      ...keepOut,
      { name: 'Training budget', action: 'ALLOW', condition: 'training', allocation: 110 },
      { name: 'Design budget', action: 'ALLOW', condition: 'design work', allocation: 1_500 },
      { name: 'Everybody else', action: 'ALLOW' },
    ],
  },
  // Used up before the evening, including overdraft.
  {
    activationId: 'LW-QUALITY',
    series: 'quality',
    quantity: 200,
    overdraft: 15,
    startsIn: -10,
    endsIn: 80,
    rules: [],
  },
  // First requested while the network is cut; one kiln reaches its limit in the evening, the other does not.
  {
    activationId: 'LW-FURNACE',
    series: 'furnace',
    quantity: 4_000,
    startsIn: -10,
    endsIn: 120,
    rules: [],
    monthlyLimit: 600,
  },
  // Charged per interval in a session.
  { activationId: SESSION_LINE_ITEM, series: 'workbench', quantity: 500, startsIn: -10, endsIn: 80, rules: [] },
  // Starts next month, so it cannot be used yet.
  { activationId: 'LW-ARCHIVE-NEXT', series: 'archive', quantity: 500, startsIn: 30, endsIn: 395, rules: [] },
]

interface RateTable {
  readonly series: string
  readonly version: string
  readonly effectiveIn: number
  readonly items: readonly { readonly name: string; readonly version: string; readonly rate: number }[]
}

const rated = (name: string, version: string, rate: number) => ({ name, version, rate })

export const RATE_TABLES: readonly RateTable[] = [
  {
    series: 'workshop',
    version: 'spring',
    effectiveIn: -40,
    items: [
      rated('LaserCut', '1.0', 0.85),
      rated('Engrave', '1.0', 0.3),
      rated('Print3D', '2.0', 1.75),
      rated('Mill', '1.0', 4),
      rated('Scan', '1.0', 0.125),
    ],
  },
  // Not in effect during the demo, so the water jet has no rate yet.
  {
    series: 'workshop',
    version: 'summer',
    effectiveIn: 14,
    items: [
      rated('LaserCut', '1.0', 0.95),
      rated('Engrave', '1.0', 0.35),
      rated('Print3D', '2.0', 1.9),
      rated('Mill', '1.0', 4.5),
      rated('Scan', '1.0', 0.125),
      rated('Waterjet', '1.0', 3.2),
    ],
  },
  {
    series: 'quality',
    version: '1',
    effectiveIn: -90,
    items: [rated('Inspect', '1.0', 0.05), rated('Certificate', '1.0', 3)],
  },
  { series: 'furnace', version: '1', effectiveIn: -20, items: [rated('Firing', '1.0', 0.75)] },
  {
    series: 'workbench',
    version: '1',
    effectiveIn: -20,
    items: [rated(SESSION_ITEM.name, SESSION_ITEM.version, 2)],
  },
  { series: 'archive', version: '1', effectiveIn: -20, items: [rated('Archive', '1.0', 0.02)] },
]
