// SPDX-License-Identifier: Apache-2.0

namespace go testthrift

enum Color {
  RED = 1
  BLUE = 7
}

struct Paint {
  1: string name
  2: Color color
  3: set<i32> codes
  4: optional list<Paint> parts
  5: i32 litres = 5
}

exception Dry {
  1: string reason
}

service Paints {
  Paint mix(1: Paint paint) throws (1: Dry dry)
}
