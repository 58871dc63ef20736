/** Every page that a signed-in administrator can open, by its path below the console. */
import { devicesPage } from './devices.ts'
import { overviewPage } from './overview.ts'
import type { Page, View } from './page.ts'

export const PAGES: readonly (readonly [path: string, make: (view: View) => Promise<Page>])[] = [
  ['', overviewPage],
  ['/devices', devicesPage],
]
