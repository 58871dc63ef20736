import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { openUnusedMemory, programRanges } from '../../../../src/agent/platform/system/unused-memory.ts'

const mapping = (range: string, permissions: string, file: string, anonymousKb = 0): string =>
  [
    `${range} ${permissions} 00000000 fe:00 1234                       ${file}`,
    'Size:                 64 kB',
    'Rss:                  64 kB',
    `Anonymous:             ${String(anonymousKb)} kB`,
    'LazyFree:              0 kB',
    '',
  ].join('\n')

describe('ranges of programs', () => {
  it('are code and constants of files', () => {
    const map =
      mapping('00400000-0251a000', 'r--p', '/usr/lib/node') + mapping('0251a000-0517f000', 'r-xp', '/usr/lib/a b')
    expect(programRanges(map)).toEqual([
      ['00400000', '0251a000'],
      ['0251a000', '0517f000'],
    ])
  })

  it.each([
    ['what the process has changed', mapping('00400000-0251a000', 'r--p', '/usr/lib/node', 4)],
    ['what it can change', mapping('00400000-0251a000', 'rw-p', '/usr/lib/node')],
    ['what it shares with others', mapping('00400000-0251a000', 'r--s', '/var/lib/ledger.db-shm')],
    ['memory without a file', mapping('00400000-0251a000', 'r-xp', '')],
    ['what the kernel maps', mapping('00400000-0251a000', 'r-xp', '[vdso]')],
    ['an empty map', ''],
  ])('leave out %s', (_what, map) => {
    expect(programRanges(map)).toEqual([])
  })
})

const fileBackedKb = (): number => {
  const [, kb] = /^RssFile:\s+(\d+) kB$/m.exec(readFileSync('/proc/self/status', 'utf8')) ?? []
  return Number(kb)
}

describe.runIf(process.platform === 'linux')('unused memory', () => {
  it('is returned, and what is used again comes back', () => {
    const before = fileBackedKb()
    openUnusedMemory()()
    expect(fileBackedKb()).toBeLessThan(before)
    expect(JSON.parse('{"still":["works"]}')).toEqual({ still: ['works'] })
  })
})
