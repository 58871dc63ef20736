import { readSmallText } from './read-file.ts'

export function textOf(path: string): string | null {
  try {
    return readSmallText(path)
  } catch {
    return null
  }
}
