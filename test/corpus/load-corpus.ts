/**
 * Reads the corpus: every JSON file beside this one is one case, named after its file. A file that does not fit the
 * format fails the whole load, with the file's name.
 */
import { readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { z } from 'zod'
import { type CorpusCase, corpusCase } from './case-format.ts'

export interface LoadedCase extends CorpusCase {
  /** File name without `.json`. */
  readonly file: string
}

/** All cases in the order of their file names. */
export function loadCorpus(directory: string = import.meta.dirname): readonly LoadedCase[] {
  const files = readdirSync(directory).filter((file) => file.endsWith('.json'))
  return files.sort().map((file) => {
    const parsed = corpusCase.safeParse(JSON.parse(readFileSync(join(directory, file), 'utf8')))
    if (!parsed.success) throw new Error(`${file}: ${z.prettifyError(parsed.error)}`)
    return { file: file.replace(/\.json$/, ''), ...parsed.data }
  })
}
