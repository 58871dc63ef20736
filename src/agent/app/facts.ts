/**
 * The facts of a decision that its ledger entry does not hold: what the accounts could give, what conditions looked at, and
 * in which version of the interface it was answered. With the rules of that revision they make the same decision again,
 * bit for bit. They stay on the device and are no part of what is hashed, sent or billed. Each decision waits for this text
 * and pays for its bytes, so accounts are not named: the rules ask for them in one order, and so does a replay.
 */
import type { AccountId } from '../../core/account.ts'
import type { Requester, Room, RoomOf } from '../../core/decision.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'

/** A view of rooms that remembers what it gave, in the order in which accounts were first asked for. */
export class RoomsSeen {
  readonly #rooms = new Map<AccountId, Room>()
  readonly #roomOf: RoomOf

  constructor(roomOf: RoomOf) {
    this.#roomOf = roomOf
  }

  readonly of: RoomOf = (account) => {
    const known = this.#rooms.get(account)
    if (known !== undefined) return known
    const room = this.#roomOf(account)
    this.#rooms.set(account, room)
    return room
  }

  accounts(): Iterable<AccountId> {
    return this.#rooms.keys()
  }

  rooms(): Iterable<Room> {
    return this.#rooms.values()
  }
}

/** What {@link parseFacts} gives back. */
export interface Facts {
  /** Null: nobody asked, such as for an automatic charge of a session. */
  readonly apiVersion: ApiVersion | null
  readonly rooms: readonly Room[]
  readonly dictionary: Requester['dictionary']
}

const VERSION_MARK = { 'v1.0': '0', 'v1.1': '1' } as const
const SHORTAGE_MARK = { POOL: 'P', GRANT: 'G', GRANT_EXPIRED: 'X', RECOVERY: 'R' } as const
const SHORTAGES = { P: 'POOL', G: 'GRANT', X: 'GRANT_EXPIRED', R: 'RECOVERY' } as const
const NOBODY = '-'
const UNLIMITED = '*'

/** `version;room,room...;dictionary`: a room is what is left, a letter for its shortage, and its arrears if any. */
export function factsText(apiVersion: ApiVersion | null, seen: RoomsSeen, dictionary: Requester['dictionary']): string {
  let rooms = ''
  for (const { left, shortage, arrears } of seen.rooms()) {
    if (rooms !== '') rooms += ','
    rooms += `${left === 'UNLIMITED' ? UNLIMITED : left}${SHORTAGE_MARK[shortage]}`
    if (arrears !== undefined) rooms += `+${arrears}`
  }
  const keys = Object.keys(dictionary).length === 0 ? '' : JSON.stringify(dictionary)
  return `${apiVersion === null ? NOBODY : VERSION_MARK[apiVersion]};${rooms};${keys}`
}

const TEXT = /^([01-]);([^;]*);(.*)$/s
const ROOM = /^(\*|\d{1,19})([PGXR])(?:\+(\d{1,19}))?$/

/** Undefined for a text that {@link factsText} did not make. */
export function parseFacts(text: string): Facts | undefined {
  const match = TEXT.exec(text)
  if (match === null) return undefined
  const [, mark = '', roomsText = '', keys = ''] = match
  const rooms: Room[] = []
  for (const each of roomsText === '' ? [] : roomsText.split(',')) {
    const parts = ROOM.exec(each)
    if (parts === null) return undefined
    const [, left = '', letter, arrears] = parts
    rooms.push({
      left: left === UNLIMITED ? 'UNLIMITED' : BigInt(left),
      shortage: SHORTAGES[letter as keyof typeof SHORTAGES],
      ...(arrears === undefined ? {} : { arrears: BigInt(arrears) }),
    })
  }
  let dictionary: unknown
  try {
    dictionary = keys === '' ? {} : JSON.parse(keys)
  } catch {
    return undefined
  }
  if (typeof dictionary !== 'object' || dictionary === null || Array.isArray(dictionary)) return undefined
  return {
    apiVersion: mark === NOBODY ? null : mark === '0' ? 'v1.0' : 'v1.1',
    rooms,
    dictionary: dictionary as Requester['dictionary'],
  }
}
