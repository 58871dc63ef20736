import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { openSinks } from '../../../../src/cloud/platform/events/open-sinks.ts'
import { cloudOptions } from '../../../../src/cloud/settings.ts'
import { loadSettings } from '../../../../src/settings/load.ts'

it('refuses a file of authorities without a certificate', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'authorities-'))
  try {
    const file = join(directory, 'ca.pem')
    writeFileSync(file, 'no certificate')
    const flags = { 'events-ca-file': file }
    const { events } = loadSettings(cloudOptions, { file: null, env: {}, flags, readText: () => '' })
    await expect(openSinks(events, () => 0)).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: `events.ca_file: ${file} has no PEM certificate.`,
    })
  } finally {
    rmSync(directory, { recursive: true })
  }
})
