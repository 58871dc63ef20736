// The architecture page lists the files that an access request on the device visits. The imports must lead to these files
// and to no others, so that the list stays true and short. It also lists the folders of both sides in the order in which
// they build on each other, so that no two of them import each other. The same holds for a folder inside of one of them.
import { globSync, readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'

const root = new URL('../../', import.meta.url)
const read = (path: string): string => readFileSync(new URL(path, root), 'utf8')

const ENTRY = 'src/agent/platform/socket/server.ts'
const FILES_MAX = 18

const OTHER_ROUTE = 'serves sessions, which the page lists apart'
const AT_START = 'runs at start, before any request'
const FOR_SYNC = 'sizes top-ups and segments of the sync rounds; no response depends on it'

/** Files that the path imports but that an access request does not visit, and why. */
const LEFT_OUT: Readonly<Record<string, string>> = {
  'src/agent/platform/socket/session-requests.ts': OTHER_ROUTE,
  'src/agent/platform/socket/claim-path.ts': AT_START,
  'src/agent/access/callers/caller-selector.ts': AT_START,
  'src/agent/access/offers.ts': 'gives advice after a request for an unknown item',
  'src/agent/ledger/demand.ts': FOR_SYNC,
  'src/agent/ledger/new-requesters.ts': 'limits what a request without tokens opens in the cloud',
  'src/agent/runtime/timers.ts': 'calls later, when no request waits',
  'src/agent/ledger/journal.ts': 'declares the interface of the journal, which makes the commits',
}

const IMPORT =
  /^(?:import|export)\s+(?<type>type\s+)?(?<what>\{[^}]*\}|\*(?:\s+as\s+\w+)?|\w+)\s+from\s+'(?<from>\.[^']+)'/gmsu

/** Whether an import brings code: a value, or a class as the type of what the composition hands over. */
function bringsCode(what: string, isType: boolean, target: string): boolean {
  if (!what.startsWith('{')) return true
  const names = what
    .slice(1, -1)
    .split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '')
  return names.some((name) => {
    const [, onlyType, imported = ''] = /^(type\s+)?(\w+)/.exec(name) ?? []
    if (!isType && onlyType === undefined) return true
    return new RegExp(`^export (?:abstract )?class ${imported}\\b`, 'm').test(target)
  })
}

/** Files of the agent whose code this file imports. */
function importsOf(path: string): readonly string[] {
  const found: string[] = []
  for (const { groups } of read(path).matchAll(IMPORT)) {
    const { type, what = '', from = '' } = groups ?? {}
    const target = new URL(from, new URL(path, root)).href.slice(root.href.length)
    if (target.startsWith('src/agent/') && bringsCode(what, type !== undefined, read(target))) found.push(target)
  }
  return found
}

function walk(leftOut: readonly string[]): ReadonlySet<string> {
  const visited = new Set([ENTRY])
  for (const path of visited) for (const next of importsOf(path)) if (!leftOut.includes(next)) visited.add(next)
  return visited
}

function listed(heading: string): readonly string[] {
  const [, after = ''] = read('docs/explanation/architecture.md').split(`\n${heading}\n`)
  const [section = ''] = after.split(/^#{2,4} /m)
  return [...section.matchAll(/\]\(\.\.\/\.\.\/(src\/agent\/[^)]+\.ts)\)/g)].map(([, path = '']) => path)
}

const onPage = listed('### An access request on the device')
const path = walk(Object.keys(LEFT_OUT))

describe('the list of files that an access request visits', () => {
  it('is what the imports lead to', () => {
    expect([...onPage].toSorted()).toEqual([...path].toSorted())
  })

  it('is short, and longer than what it leaves out', () => {
    expect(onPage.length).toBeLessThanOrEqual(FILES_MAX)
    expect(Object.keys(LEFT_OUT).length).toBeLessThan(onPage.length / 2)
  })

  it('leaves out only what a file on it imports', () => {
    const next = new Set([...path].flatMap(importsOf))
    expect(Object.keys(LEFT_OUT).filter((left) => !next.has(left))).toEqual([])
  })

  it('follows what the composition hands over as well', () => {
    expect(importsOf('src/agent/platform/socket/request-handler.ts')).toContain('src/agent/access/access.ts')
    expect(importsOf('src/agent/access/access.ts')).toEqual(
      expect.arrayContaining(['src/agent/access/local-decisions.ts', 'src/agent/ledger/ledger.ts']),
    )
  })

  it('grows in a session only by the files of sessions', () => {
    const withSessions = walk(Object.keys(LEFT_OUT).filter((left) => LEFT_OUT[left] !== OTHER_ROUTE))
    expect([...withSessions].filter((each) => !path.has(each)).toSorted()).toEqual(
      [...listed('#### In a session')].toSorted(),
    )
  })
})

/** Connections to the outside world: they may import every capability. */
const ADAPTER = /^src\/(?:agent|cloud)\/(?:platform|http|storage\/(?:sql|sqlite|postgres))\//

/** The capability of a file. Undefined for adapters and for files that belong to no folder. */
function capabilityOf(path: string, side: string): string | undefined {
  return ADAPTER.test(path) ? undefined : new RegExp(`^src/${side}/([^/]+)/`).exec(path)?.[1]
}

describe.each(['agent', 'cloud'])('the folders of the %s', (side) => {
  const row = new RegExp(`^\\| \`${side}\` +\\|(.*)\\|$`, 'm').exec(read('docs/explanation/architecture.md'))
  const order = [...(row?.[1] ?? '').matchAll(/`([^`]+)`/g)].map(([, folder = '']) => folder)
  const files = globSync(`src/${side}/*/**/*.ts`, { cwd: root }).map((file) => file.replaceAll('\\', '/'))

  it('are all on the page', () => {
    const folders = new Set(files.map((file) => capabilityOf(file, side)).filter((folder) => folder !== undefined))
    expect(order.toSorted()).toEqual([...folders].toSorted())
  })

  it('import only folders before them', () => {
    const upwards = files.flatMap((file) => {
      const from = capabilityOf(file, side)
      if (from === undefined) return []
      return [...read(file).matchAll(IMPORT)].flatMap(([, , , path = '']) => {
        const target = new URL(path, new URL(file, root)).href.slice(root.href.length)
        const to = capabilityOf(target, side)
        return to !== undefined && order.indexOf(to) > order.indexOf(from) ? [`${file} imports ${target}`] : []
      })
    })
    expect(upwards).toEqual([])
  })

  it('have no inner folder that its own imports lead back to', () => {
    const targetsOf = (file: string): readonly string[] =>
      [...read(file).matchAll(IMPORT)].map(([, , , path = '']) =>
        new URL(path, new URL(file, root)).href.slice(root.href.length),
      )
    const inner = new Set(
      files.filter((file) => !ADAPTER.test(file)).map((file) => file.slice(0, file.lastIndexOf('/'))),
    )
    const back = [...inner].flatMap((folder) => {
      const isInside = (file: string): boolean => file.startsWith(`${folder}/`)
      const capability = folder.split('/', 3).join('/')
      if (folder === capability) return []
      const outside = new Set(
        files
          .filter(isInside)
          .flatMap(targetsOf)
          .filter((file) => !isInside(file)),
      )
      const found: string[] = []
      for (const file of outside) {
        if (!file.startsWith(`${capability}/`)) continue
        for (const target of targetsOf(file)) {
          if (isInside(target)) found.push(`${file} imports ${target}`)
          else outside.add(target)
        }
      }
      return found
    })
    expect(back).toEqual([])
  })
})
