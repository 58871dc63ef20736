import { expect, test } from 'vitest'
import { configurationPage } from '../../scripts/configuration-page.ts'
import { integer, secret, text } from '../../src/settings/option.ts'

test('the page names key, variable, flag, default and what a setting takes', () => {
  const page = configurationPage([
    {
      command: 'tallygate agent',
      table: {
        envPrefix: 'TALLYGATE_AGENT',
        options: {
          limits: { bodyMax: integer({ default: 5, min: 1, max: 9, unit: 'bytes', help: 'Largest | body.' }) },
          name: text({ default: null, help: 'Its name.' }),
          token: secret({ help: 'Its token.' }),
        },
      },
    },
  ])
  expect(page).toContain('`/etc/tallygate/agent.toml` if it exists')
  expect(page).toContain('`limits.body_max` is `--limits-body-max`')
  expect(page).toContain(
    '| `limits.body_max`<br>`TALLYGATE_AGENT_LIMITS_BODY_MAX` | `5` | Largest \\| body. Takes a whole number from 1 to 9, in bytes. |',
  )
  expect(page).toContain('| `name`<br>`TALLYGATE_AGENT_NAME` |  | Its name. Takes text of 1 to 1000 characters. |')
  expect(page).toContain('| `token_file`<br>`TALLYGATE_AGENT_TOKEN_FILE` |  |')
})
