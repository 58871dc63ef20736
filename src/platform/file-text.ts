import { orNull } from './or-null.ts'
import { readSmallText } from './read-file.ts'

export function fileText(path: string): string | null {
  return orNull(() => readSmallText(path))
}
