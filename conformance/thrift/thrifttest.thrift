// SPDX-License-Identifier: Apache-2.0

// The methods have the names, the arguments and the results of those that Apache Thrift's own cross
// test calls, but for testUuid: the compiler of version 0.17 does not know the type uuid.

namespace go thrifttest

enum Numberz { ONE = 1, TWO, THREE, FIVE = 5, SIX, EIGHT = 8 }

typedef i64 UserId

struct Xtruct {
  1: string string_thing
  4: i8 byte_thing
  9: i32 i32_thing
  11: i64 i64_thing
}

struct Xtruct2 {
  1: i8 byte_thing
  2: Xtruct struct_thing
  3: i32 i32_thing
}

struct Insanity {
  1: map<Numberz, UserId> userMap
  2: list<Xtruct> xtructs
}

union Choice {
  1: i32 number
  2: string text
  3: Xtruct thing
}

struct Everything {
  1: bool yes
  2: bool no
  3: i8 tiny
  4: i16 short
  5: i32 medium
  6: i64 wide
  7: double real
  8: string text
  9: binary data
  10: Numberz number
  11: Xtruct thing
  12: list<bool> flags
  13: list<i32> numbers
  14: set<string> names
  15: map<string, list<Xtruct>> things
  16: map<Numberz, set<i32>> sets
  17: list<map<i16, double>> maps
  18: Choice choice
  19: optional i32 maybe
  20: optional bool perhaps
  21: optional string absent
  22: required string needed
  300: i64 far
  301: list<Xtruct> empty
}

exception Xception {
  1: i32 errorCode
  2: string message
}

exception Xception2 {
  1: i32 errorCode
  2: Xtruct struct_thing
}

service ThriftTest {
  void testVoid()
  string testString(1: string thing)
  bool testBool(1: bool thing)
  i8 testByte(1: i8 thing)
  i32 testI32(1: i32 thing)
  i64 testI64(1: i64 thing)
  double testDouble(1: double thing)
  binary testBinary(1: binary thing)
  uuid testUuid(1: uuid thing)
  Xtruct testStruct(1: Xtruct thing)
  Xtruct2 testNest(1: Xtruct2 thing)
  map<i32, i32> testMap(1: map<i32, i32> thing)
  map<string, string> testStringMap(1: map<string, string> thing)
  set<i32> testSet(1: set<i32> thing)
  list<i32> testList(1: list<i32> thing)
  Numberz testEnum(1: Numberz thing)
  UserId testTypedef(1: UserId thing)
  map<i32, map<i32, i32>> testMapMap(1: i32 hello)
  map<UserId, map<Numberz, Insanity>> testInsanity(1: Insanity argument)
  Xtruct testMulti(1: i8 arg0, 2: i32 arg1, 3: i64 arg2, 4: map<i16, string> arg3, 5: Numberz arg4, 6: UserId arg5)
  void testException(1: string arg) throws (1: Xception err1)
  Xtruct testMultiException(1: string arg0, 2: string arg1) throws (1: Xception err1, 2: Xception2 err2)
  oneway void testOneway(1: i32 secondsToSleep)

  Everything testEverything(1: Everything thing)
}

service SecondService {
  string secondtestString(1: string thing)
}
