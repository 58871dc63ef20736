// Names that applications, administrators and devices chose, on the terminal of a person who looks at them.
import { describe, expect, it } from 'vitest'
import { columns, harmless, jsonLine } from '../../src/cli/lines.ts'
import { AGENT_STATUS_PATH } from '../../src/protocol/local/status.ts'
import { agentStatus, instanceId } from './agent-status.ts'
import { fakeService } from './fake-service.ts'
import { tallygate } from './outside.ts'

const EVIL = 'A\u001b]52;c;eA\u0007\u009b2J\u202e\r\nTOKENS OF  forged\u2028B'
const SHOWN = 'A\\u001b]52;c;eA\\u0007\\u009b2J\\u202e\\u000d\\u000aTOKENS OF  forged\\u2028B'

describe('a name with characters that a terminal obeys', () => {
  it('is shown with their numbers, and any other as it is', () => {
    expect(harmless(EVIL)).toBe(SHOWN)
    expect(harmless(harmless(EVIL))).toBe(SHOWN)
    expect(harmless('Käse 🧀 "x" \\ שלום')).toBe('Käse 🧀 "x" \\ שלום')
  })

  it('does not look like another name because of invisible characters', () => {
    expect(harmless('an\u200bna\u00ad \u2060b\ufeff')).toBe('an\\u200bna\\u00ad \\u2060b\\ufeff')
    expect(harmless('an\u200dna \ufe0fb\u{e0061}')).toBe('an\\u200dna \\ufe0fb\\udb40\\udc61')
    expect(harmless('a\u{e0100}葛\u180b')).toBe('a\\udb40\\udd00葛\\u180b')
  })

  it.each(['👨‍👩‍👧', '👩🏽‍🔧', '❤️‍🔥', '1️⃣', 'می\u200cخواهم', 'क्\u200dष', '٤٢\u0601', '葛\u{e0100}城', 'ᠠ\u180b'])(
    'keeps %s, whose joiners and selectors are meant',
    (name) => {
      expect(harmless(name)).toBe(name)
    },
  )

  it('takes the place in a table that it is shown with', () => {
    const [first = '', second = ''] = columns([
      ['\u001b', 'x'],
      ['seven77', 'y'],
    ])
    expect([first, second].map((line) => line.length)).toEqual([10, 10])
  })

  it('takes the same place in a table of any length', () => {
    const lines = columns(Array.from({ length: 300_000 }, (_, n) => [String(n), 'x']))
    expect([lines.length, lines[0]]).toEqual([300_000, '0       x'])
  })

  it('moves only the rest of its row if it is very long', () => {
    const lines = columns([
      ['x'.repeat(200), 'a'],
      ['short', 'b'],
      ['longer', 'c'],
    ])
    expect(lines).toEqual([`${'x'.repeat(200)}  a`, 'short   b', 'longer  c'])
  })

  it('is cut where the terminal ends, except in the first two columns', () => {
    const rows = [
      ['NAME', 'STATE', 'OBJECT', 'BY'],
      ['a', 'active', '0123456789'.repeat(4), 'Ada'],
      ['b', 'active', '日本語日本語日本語日本語', 'Ada'],
    ]
    expect(columns(rows, 33)).toEqual([
      'NAME  STATE   OBJECT',
      'a     active  012345678901234567…',
      'b     active  日本語日本語日本語…',
    ])
    expect(columns(rows, 29)).toEqual(['NAME  STATE', 'a     active', 'b     active'])
    expect(columns([['x'.repeat(60), 'active', 'y']], 40)).toEqual([`${'x'.repeat(60)}  active`])
    expect(columns(rows)).toEqual(columns(rows, 70))
  })

  it('is one of very many', () => {
    expect(columns(Array.from({ length: 200_000 }, () => ['a', 'b']))).toHaveLength(200_000)
  })

  it('takes two columns per wide character, so that the next column begins at the same place', () => {
    const names = ['日本語', '한국어', 'Käse 🧀', '👨‍👩‍👧', '🇩🇪', '❤️', 'ＡＢ', 'e\u0301', 'ไม้', 'ｶﾅ']
    const gaps = columns(names.map((name) => [name, 'x'])).map((line, index) =>
      line.slice(names[index]!.length).indexOf('x'),
    )
    expect(gaps).toEqual([3, 3, 2, 7, 7, 7, 5, 8, 7, 7])
  })

  it('is the same name in JSON', () => {
    expect(JSON.parse(jsonLine({ name: EVIL }))).toEqual({ name: EVIL })
    expect(harmless(jsonLine({ name: EVIL }))).toBe(jsonLine({ name: EVIL }))
  })

  it('neither moves a cursor nor makes lines of its own, in a status, an answer or an error', async () => {
    const [account] = agentStatus().accounts
    const answered = {
      correlationId: 'c',
      requester: { type: 'user', value: 'x' },
      requestedItems: [
        {
          ...{ item: 'x', version: '', count: 1, status: { code: '1001', description: 'ok' }, totalTokensCharged: 1 },
          lineItems: [{ activationId: EVIL, rate: 1, tokensCharged: 1 }],
        },
      ],
    }
    await using agent = await fakeService('socket', {
      [`GET ${AGENT_STATUS_PATH}`]: {
        body: agentStatus({ accounts: [{ ...account!, account: `line/${instanceId}/${encodeURIComponent(EVIL)}/0` }] }),
      },
      [`POST /elastic/api/v1.1/instances/${instanceId}/access-request`]: { body: answered },
      'GET /tallygate/v1/log': { status: 500, body: { code: 'INTERNAL', message: EVIL } },
    })
    const said = []
    for (const args of [['status'], ['access', '--item', 'x', '--requester', 'user:x'], ['logs']]) {
      const { out, err } = await tallygate([...args, '--socket', agent.address])
      said.push(out + err)
    }
    for (const text of said) {
      expect(text).toContain('\\u001b]52;c;eA\\u0007')
      // oxlint-disable-next-line no-control-regex -- what must not be there
      expect(text).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202e\u2028]|^TOKENS OF {2}forged/m)
    }
  })
})
