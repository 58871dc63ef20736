/** License texts of the packages whose code is in the bundles. */
import { readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import type { BundledPackage } from './bundle.ts'

const LEGAL = /^(licen[cs]e|copying|notice)/i

export function noticesOf(packages: readonly BundledPackage[]): string {
  return packages
    .map(({ id, folder, license }) => {
      const texts = readdirSync(folder)
        .filter((name) => LEGAL.test(name))
        .sort()
        .map((name) => readFileSync(join(folder, name), 'utf8').trim())
      return [`${id} (${license})`, ...texts].join('\n\n')
    })
    .join(`\n\n${'-'.repeat(80)}\n\n`)
    .concat('\n')
}
