import { userInfo } from 'node:os'
import { expect, test } from 'vitest'
import { userDirectory } from '../../src/cli/user-directory.ts'

test.each([
  [{ XDG_CONFIG_HOME: '/x', HOME: '/home/ada' }, '/x/tallygate'],
  [{ XDG_CONFIG_HOME: 'x', HOME: '/home/ada' }, '/home/ada/.config/tallygate'],
  [{ HOME: '' }, `${userInfo().homedir}/.config/tallygate`],
  [{ HOME: 'here' }, `${userInfo().homedir}/.config/tallygate`],
  [{}, `${userInfo().homedir}/.config/tallygate`],
])('with %j, the directory does not depend on where a command runs', (env, directory) => {
  expect(userDirectory('XDG_CONFIG_HOME', { env })).toBe(directory)
})
