/** An instance's accounts, each with the balances of its device epochs, as of one instant. */
import type { AccountLedgerWire } from '../../protocol/edge/administration.ts'
import type { Store } from '../storage/store.ts'
import { overspendOn, billedOn, reservedOn, unaccountedOn } from '../storage/device-records.ts'
import { requireInstance } from '../storage/require-record.ts'

/** A page ends after the account with which it has so many balances of device epochs. */
const BALANCES_OF_PAGE = 10_000

/** By line item. @throws CodedError NOT_FOUND for an unknown instance */
export async function accountLedger(
  { store }: { readonly store: Pick<Store, 'read'> },
  instanceId: string,
  offset: number,
  limit: number,
): Promise<AccountLedgerWire> {
  return store.read(async (reader) => {
    await requireInstance(reader, instanceId)
    const { deviceAccounts } = reader.edge
    const found = await reader.accounts.page(instanceId, offset, limit + 1)
    const counts = await deviceAccounts.countsOf(found.map(({ account }) => account))
    let balances = 0
    const shown = found.slice(0, limit).filter(({ account }) => {
      const isFull = balances >= BALANCES_OF_PAGE
      balances += counts.get(account) ?? 0
      return !isFull
    })
    const onDevices = Map.groupBy(
      await deviceAccounts.ofAccounts(shown.map(({ account }) => account)),
      ({ record }) => record.account,
    )
    return {
      next: shown.length < found.length ? offset + shown.length : 0,
      accounts: shown.map((pool) => ({
        account: pool.account,
        cap: amountText(pool.capTarget),
        capInForce: amountText(pool.capInForce),
        charged: String(pool.charged),
        grantedOut: String(pool.grantedOut),
        billedByDevices: String(pool.billedByDevices),
        withheld: String(pool.withheld),
        presumed: String(sumOf(onDevices.get(pool.account), ({ record }) => record.presumed)),
        overspend: String(sumOf(onDevices.get(pool.account), ({ record }) => overspendOn(record))),
        exposure: {
          released: String(sumOf(onDevices.get(pool.account), ({ record }) => record.released)),
          copies: String(
            sumOf(onDevices.get(pool.account), ({ record, forked }) => (forked ? unaccountedOn(record) : 0n)),
          ),
        },
        devices: (onDevices.get(pool.account) ?? []).map(({ record, status }) => ({
          deviceId: record.deviceId,
          epoch: record.epoch,
          status,
          granted: String(record.granted),
          used: String(record.used),
          refunded: String(record.refunded),
          returned: String(record.returned),
          branchUsed: String(record.branchUsed),
          overspend: String(overspendOn(record)),
          presumed: String(record.presumed),
          released: String(record.released),
          unlimited: record.unlimited,
          outstanding: String(reservedOn(record)),
          billed: String(billedOn(record)),
        })),
      })),
    }
  })
}

function sumOf<T>(all: readonly T[] = [], amountOf: (one: T) => bigint): bigint {
  return all.reduce((sum, one) => sum + amountOf(one), 0n)
}

function amountText(amount: bigint | null): string | null {
  return amount === null ? null : String(amount)
}
