import { describe, expect, it } from 'vitest'
import { ConnectingClients } from '../../../src/cloud/runtime/connecting-clients.ts'

const never = (): boolean => false

/** Clients whose turns of the event loop are ended by the test. */
function openTurns() {
  const ends: (() => void)[] = []
  const clients = new ConnectingClients((call) => void ends.push(call))
  const endTurn = (): void => {
    for (const call of ends.splice(0)) call()
  }
  return { clients, endTurn, ends }
}

describe('ConnectingClients', () => {
  it('calls at the end of the turn if no client connects', () => {
    const { clients, endTurn } = openTurns()
    let calls = 0
    clients.defer(() => (calls += 1), never)
    expect(calls).toBe(0)
    endTurn()
    expect(calls).toBe(1)
  })

  it('waits for a turn in which no client connects', () => {
    const { clients, endTurn, ends } = openTurns()
    let calls = 0
    clients.connected()
    clients.defer(() => (calls += 1), never)
    for (let turn = 0; turn < 5; turn += 1) {
      endTurn()
      clients.connected()
    }
    expect(calls).toBe(0)
    for (let turn = 0; turn < 3; turn += 1) endTurn()
    expect(calls).toBe(1)
    expect(ends).toEqual([])
  })

  it('waits no longer when there are enough requests', () => {
    const { clients, endTurn } = openTurns()
    let [calls, waiting] = [0, 1]
    clients.connected()
    clients.defer(
      () => (calls += 1),
      () => waiting >= 3,
    )
    const counts: number[] = []
    for (; waiting < 4; waiting += 1) {
      endTurn()
      clients.connected()
      counts.push(calls)
    }
    expect(counts).toEqual([0, 0, 1])
  })

  it('waits for sixteen turns at most', () => {
    const { clients, endTurn } = openTurns()
    let calls = 0
    clients.defer(() => (calls += 1), never)
    const turns: number[] = []
    for (let turn = 1; turn <= 20; turn += 1) {
      clients.connected()
      endTurn()
      if (calls === 1 && turns.length === 0) turns.push(turn)
    }
    expect(turns).toEqual([16])
  })
})
