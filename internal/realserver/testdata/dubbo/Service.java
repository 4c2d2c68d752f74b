// SPDX-License-Identifier: Apache-2.0

package com.acme;

import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.dubbo.rpc.RpcContext;

/** The implementation of Greeter, for clients of yodel. */
public class Service implements Greeter {
    private volatile String last = "";

    public String sayHello(String name) { return "Hello " + name; }
    public int add(int a, int b) { return a + b; }

    public long sum(long[] numbers) {
        long sum = 0;
        for (long number : numbers) {
            sum += number;
        }
        return sum;
    }

    public User rename(User user, String name) {
        user.setName(name);
        return user;
    }

    public List<User> friends(User user) {
        List<User> all = new ArrayList<>();
        all.add(user);
        all.add(user.getBest());
        all.add(user);
        return all;
    }

    public Map<String, Integer> count(List<String> words) {
        Map<String, Integer> all = new TreeMap<>();
        for (String word : words) {
            all.merge(word, 1, Integer::sum);
        }
        return all;
    }

    public Set<String> distinct(Set<String> words) { return new TreeSet<>(words); }
    public Color next(Color color) { return Color.values()[(color.ordinal() + 1) % 3]; }
    public Date tomorrow(Date day) { return new Date(day.getTime() + 24L * 3600 * 1000); }

    public byte[] reverse(byte[] data) {
        byte[] out = new byte[data.length];
        for (int i = 0; i < data.length; i++) {
            out[data.length - 1 - i] = data[i];
        }
        return out;
    }

    public Long twice(Long number) { return number == null ? null : 2 * number; }
    public String nothing() { return null; }
    public void fail(String text) { throw new IllegalStateException(text); }

    public String slow(int millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            return "interrupted";
        }
        return "slow";
    }

    public void note(String text) { last = text; }
    public String noted() { return last; }

    public Map<String, String> describe() {
        Map<String, String> all = new HashMap<>();
        RpcContext.getServerAttachment().getObjectAttachments().forEach((key, value) -> all.put(key, String.valueOf(value)));
        RpcContext.getServerContext().setAttachment("answer", "42");
        return all;
    }
}
