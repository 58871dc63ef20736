import { recordChange } from '../storage/audit.ts'
import type { ConfigurationName } from '../../protocol/service/configuration.ts'
import { changeSharedRules } from '../policy/bump-policy-revision.ts'
import { type ConfigurationState, showConfiguration } from '../policy/configuration.ts'
import type { Store, Transaction } from '../storage/store.ts'

/** Values used in decisions: changing one changes every instance's rules. */
const RULES: ReadonlySet<string> = new Set<ConfigurationName>(['timezone.tolerant', 'session.charge.period'])

/** The caller has checked the changes with `configurationProblem`. Returns the whole new configuration. */
export async function changeConfiguration(
  store: Store,
  changes: readonly { readonly name: string; readonly value: string }[],
  updatedBy: string,
  now: number,
): Promise<readonly ConfigurationState[]> {
  return store.transaction(async (tx) => {
    const before = new Map<string, string>(
      (await showConfiguration(tx)).map(({ name, value }) => [name, value] as const),
    )
    const differing = changes.filter(({ name, value }) => before.get(name) !== value)
    const save = (): Promise<void> => saveAll(tx, differing, updatedBy, now)
    if (differing.some(({ name }) => RULES.has(name))) await changeSharedRules(tx, now, save)
    else await save()
    return showConfiguration(tx)
  })
}

async function saveAll(
  tx: Transaction,
  changes: readonly { readonly name: string; readonly value: string }[],
  updatedBy: string,
  modified: number,
): Promise<void> {
  for (const { name, value } of changes) await tx.configuration.save({ name, value, modified, updatedBy })
  const detail = Object.fromEntries(changes.map(({ name, value }) => [name, value]))
  if (changes.length > 0) await recordChange(tx, modified, { action: 'CHANGE_CONFIGURATION', detail })
}
