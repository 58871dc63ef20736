import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { openUnusedMemory, programRanges } from '../../../../src/agent/platform/system/unused-memory.ts'

const PROGRAM = '/usr/lib/a b/node'

const mapping = (range: string, permissions: string, file: string, { anonymousKb = 0, swappedKb = 0 } = {}): string =>
  [
    `${range} ${permissions} 00000000 fe:00 1234                       ${file}`,
    'Size:                 64 kB',
    'Rss:                  64 kB',
    `Anonymous:             ${String(anonymousKb)} kB`,
    'LazyFree:              0 kB',
    `Swap:                  ${String(swappedKb)} kB`,
    '',
  ].join('\n')

describe('ranges of a program', () => {
  it('contain its code and its constants', () => {
    const map = mapping('00400000-0251a000', 'r--p', PROGRAM) + mapping('0251a000-0517f000', 'r-xp', PROGRAM)
    expect(programRanges(map, PROGRAM)).toEqual([
      ['00400000', '0251a000'],
      ['0251a000', '0517f000'],
    ])
  })

  it.each([
    ['changed pages', mapping('00400000-0251a000', 'r--p', PROGRAM, { anonymousKb: 4 })],
    ['changed pages that are swapped out', mapping('00400000-0251a000', 'r--p', PROGRAM, { swappedKb: 4 })],
    ['writable memory', mapping('00400000-0251a000', 'rw-p', PROGRAM)],
    ['shared memory', mapping('00400000-0251a000', 'r--s', PROGRAM)],
    ['other files, such as libraries', mapping('00400000-0251a000', 'r-xp', `${PROGRAM}.so`)],
    ['memory without a file', mapping('00400000-0251a000', 'r-xp', '')],
    ['mappings of the kernel', mapping('00400000-0251a000', 'r-xp', '[vdso]')],
    ['an empty map', ''],
  ])('leave out %s', (_name, map) => {
    expect(programRanges(map, PROGRAM)).toEqual([])
  })
})

const fileBackedKb = (): number => {
  const [, kb] = /^RssFile:\s+(\d+) kB$/m.exec(readFileSync('/proc/self/status', 'utf8')) ?? []
  return Number(kb)
}

describe.runIf(process.platform === 'linux')('unused memory', () => {
  it('is returned, and comes back when it is used again', () => {
    const before = fileBackedKb()
    openUnusedMemory()()
    expect(fileBackedKb()).toBeLessThan(before)
    expect(JSON.parse('{"still":["works"]}')).toEqual({ still: ['works'] })
  })
})
