// Where commands write files: with what else may stand in such a place.
import { execFileSync } from 'node:child_process'
import {
  createReadStream,
  lstatSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { text } from 'node:stream/consumers'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { refuseItself } from '../../src/cli/refuse-itself.ts'
import { makePrivateDirectory, writeFileAtomically } from '../../src/cli/atomic-write.ts'

let directory: string
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tallygate-whole-'))
})
afterEach(() => rmSync(directory, { recursive: true }))

async function* bytes(...pieces: readonly string[]): AsyncIterable<Uint8Array> {
  for (const piece of pieces) yield await Promise.resolve(Buffer.from(piece))
}

async function* neverRead(): AsyncIterable<Uint8Array> {
  yield await Promise.reject<Uint8Array>(new Error('the content is read'))
}

it('a pipe gets what is written, and stays', async () => {
  const path = join(directory, 'pipe')
  execFileSync('mkfifo', [path])
  const read = text(createReadStream(path))
  await writeFileAtomically(path, bytes('one ', 'two'))
  expect(await read).toBe('one two')
  expect(lstatSync(path).isFIFO()).toBe(true)
  expect(readdirSync(directory)).toEqual(['pipe'])
})

it('a pipe, and a link to a device, are no place for a backup', async () => {
  const pipe = join(directory, 'pipe')
  const link = join(directory, 'null')
  execFileSync('mkfifo', [pipe])
  symlinkSync('/dev/null', link)
  for (const place of [pipe, link, '/dev/null', '/dev/stdout']) {
    expect(() => refuseItself(join(directory, 'journal.db'), place), place).toThrow(
      expect.objectContaining({ code: 'OUTPUT_UNWRITABLE' }),
    )
  }
  await writeFileAtomically(link, bytes('lost'))
  expect([lstatSync(link).isSymbolicLink(), lstatSync('/dev/null').isCharacterDevice()]).toEqual([true, true])
})

it('an output that goes to a file by another name gets what is written', () => {
  const out = join(directory, 'out')
  const module = new URL('../../src/cli/atomic-write.ts', import.meta.url).href
  const script = `import { makePrivateDirectory, writeFileAtomically } from '${module}'
    await writeFileAtomically('/proc/self/fd/1', (async function* () { yield Buffer.from('said') })())`
  execFileSync('sh', ['-c', '"$1" --input-type=module -e "$2" >"$3"', 'sh', process.execPath, script, out])
  expect(readFileSync(out, 'utf8')).toBe('said')
})

it('does not follow a link that another user has put at the path or beside it', async () => {
  const precious = join(directory, 'precious')
  writeFileSync(precious, 'precious')
  const path = join(directory, 'out')
  symlinkSync(precious, `${path}.${process.pid}.partial`)
  symlinkSync(precious, path)
  await writeFileAtomically(path, bytes('said'))
  expect([readFileSync(precious, 'utf8'), readFileSync(path, 'utf8')]).toEqual(['precious', 'said'])
  expect(lstatSync(path).isFile()).toBe(true)
})

it('names the reason why a path cannot be written', async () => {
  const at = (path: string) => writeFileAtomically(join(directory, path), bytes('x'))
  await expect(at('none/file')).rejects.toThrow('none/file: its directory does not exist.')
  writeFileSync(join(directory, 'file'), '')
  await expect(at('file/file')).rejects.toThrow('file/file: a part of its path is not a directory.')
  for (const path of ['/', directory]) {
    await expect(writeFileAtomically(path, neverRead()), path).rejects.toThrow(
      `Cannot write ${path}: it is a directory.`,
    )
  }
  expect(readdirSync(directory)).toEqual(['file'])
})

it('a private directory gets its missing parents, for this user only', () => {
  const path = join(directory, 'one', 'two')
  makePrivateDirectory(path)
  makePrivateDirectory(path)
  for (const made of [path, join(directory, 'one')]) expect(statSync(made).mode & 0o777).toBe(0o700)
})

it('where no directory can be made, the error names the reason', () => {
  writeFileSync(join(directory, 'file'), '')
  for (const [place, reason] of [
    ['/proc/config/tallygate', 'its directory does not exist'],
    [join(directory, 'file'), 'a file is in its place'],
    [join(directory, 'file', 'one'), 'a file is in its place'],
  ] as const) {
    const message = `Cannot write ${place}: ${reason}.`
    expect(() => makePrivateDirectory(place)).toThrow(expect.objectContaining({ code: 'OUTPUT_UNWRITABLE', message }))
  }
})
