// SPDX-License-Identifier: Apache-2.0

package com.acme;

import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The service of the tests. */
public interface Greeter {
    String sayHello(String name);
    int add(int a, int b);
    long sum(long[] numbers);
    User rename(User user, String name);
    List<User> friends(User user);
    Map<String, Integer> count(List<String> words);
    Set<String> distinct(Set<String> words);
    Color next(Color color);
    Date tomorrow(Date day);
    byte[] reverse(byte[] data);
    Long twice(Long number);
    String nothing();
    void fail(String text);
    String slow(int millis);
    void note(String text);
    String noted();
    Map<String, String> describe();
}
