// SPDX-License-Identifier: Apache-2.0

package com.acme;

import com.google.protobuf.StringValue;
import java.io.IOException;
import java.net.URI;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import org.apache.dubbo.config.ApplicationConfig;
import org.apache.dubbo.config.ProtocolConfig;
import org.apache.dubbo.config.ReferenceConfig;
import org.apache.dubbo.config.RegistryConfig;
import org.apache.dubbo.config.ServiceConfig;
import org.apache.dubbo.config.bootstrap.DubboBootstrap;
import org.apache.dubbo.rpc.RpcContext;
import org.apache.dubbo.rpc.service.EchoService;
import org.apache.dubbo.rpc.service.GenericService;

/**
 * A provider or a consumer of Greeter, or of Texts over triple. The arguments are "provider", the
 * registry, the protocol, the port and the register mode of Dubbo (default "all"), or "consumer",
 * the registry or the URL of a provider, the protocol and the migration step. It reads standard
 * input up to its end.
 */
public final class Peer {
    private static final String VERSION = "1.0.0";
    private static final String GROUP = "blue";

    public static void main(String[] args) throws Exception {
        if (args[0].equals("provider")) {
            provide(registry(args[1]), args[2], Integer.parseInt(args[3]), args.length > 4 ? args[4] : "all");
        } else {
            consume(registry(args[1]), args[2], args[3]);
        }
        Runtime.getRuntime().halt(0); // Dubbo's own shutdown takes seconds
    }

    /** Returns the URL of a registry. That of Nacos may say where Nacos serves its SDK. */
    private static String registry(String url) {
        String[] parts = url.split("\\?grpc=");
        if (parts.length == 2) {
            int offset = URI.create("grpc://" + parts[1]).getPort() - URI.create(parts[0]).getPort();
            System.setProperty("nacos.server.grpc.port.offset", String.valueOf(offset));
        }
        return parts[0];
    }

    private static ApplicationConfig application(String name) {
        ApplicationConfig application = new ApplicationConfig(name);
        application.setQosEnable(false);
        return application;
    }

    private static void provide(String registry, String protocol, int port, String mode) throws IOException {
        ServiceConfig<Object> service = new ServiceConfig<>();
        service.setInterface(protocol.equals("tri") ? Texts.class : Greeter.class);
        service.setRef(protocol.equals("tri") ? new Texts.Service() : new Service());
        service.setVersion(VERSION);
        service.setGroup(GROUP);
        ProtocolConfig config = new ProtocolConfig(protocol, port);
        config.setHost("127.0.0.1");
        ApplicationConfig application = application("java-provider");
        application.setMetadataType("remote");
        RegistryConfig registryConfig = new RegistryConfig(registry);
        registryConfig.setRegisterMode(mode);
        DubboBootstrap.getInstance().application(application).registry(registryConfig)
            .protocol(config).service(service).start();
        System.out.println("ready");
        while (System.in.read() >= 0) {
            continue;
        }
    }

    private static <T> ReferenceConfig<T> reference(Class<T> type, String from, String protocol, String step) {
        ReferenceConfig<T> reference = new ReferenceConfig<>();
        reference.setInterface(type == GenericService.class ? Greeter.class : type);
        reference.setVersion(VERSION);
        reference.setGroup(GROUP);
        reference.setTimeout(5000);
        reference.setRetries(0);
        reference.setCheck(false);
        if (from.startsWith(protocol + ":")) {
            reference.setUrl(from);
        } else {
            reference.setProtocol(protocol);
            Map<String, String> parameters = new HashMap<>();
            parameters.put("migration.step", step);
            reference.setParameters(parameters);
        }
        return reference;
    }

    private static void consume(String from, String protocol, String step) throws Exception {
        DubboBootstrap bootstrap = DubboBootstrap.getInstance().application(application("java-consumer"));
        if (!from.startsWith(protocol + ":")) {
            bootstrap.registry(new RegistryConfig(from));
        }
        if (protocol.equals("tri")) {
            texts(bootstrap, from, step);
            System.out.println("done");
            return;
        }
        ReferenceConfig<Greeter> reference = reference(Greeter.class, from, protocol, step);
        bootstrap.reference(reference).start();
        Greeter greeter = reference.get();
        User user = new User(1L << 40, "Ada 🦉");
        user.setBest(new User(2, "Bob"));
        user.setLabels(Arrays.asList("x", "y"));
        user.setColor(Color.GREEN);
        Map<String, Double> scores = new HashMap<>();
        scores.put("go", 1.5);
        user.setScores(scores);
        say("sayHello", () -> greeter.sayHello("Java"));
        say("add", () -> greeter.add(40, 2));
        say("sum", () -> greeter.sum(new long[] {1, 2, 1L << 40}));
        say("rename", () -> describe(greeter.rename(user, "Eve")));
        say("friends", () -> {
            StringBuilder all = new StringBuilder();
            for (User friend : greeter.friends(user)) {
                all.append(describe(friend)).append(";");
            }
            return all;
        });
        say("count", () -> new TreeMap<>(greeter.count(List.of("a", "b", "a"))));
        say("distinct", () -> new TreeSet<>(greeter.distinct(new TreeSet<>(List.of("b", "a")))));
        say("next", () -> greeter.next(Color.BLUE));
        say("tomorrow", () -> greeter.tomorrow(new Date(1_700_000_000_123L)).getTime());
        say("reverse", () -> Arrays.toString(greeter.reverse(new byte[] {1, 2, -3})));
        say("twice", () -> greeter.twice(21L) + " " + greeter.twice(null));
        say("nothing", greeter::nothing);
        say("fail", () -> {
            greeter.fail("no such user");
            return "";
        });
        RpcContext.getClientAttachment().setAttachment("tenant", "acme");
        say("describe", () -> {
            Map<String, String> all = greeter.describe();
            return all.get("tenant") + " " + all.get("deadline") + " " + RpcContext.getClientResponseContext().getAttachment("answer");
        });
        say("noted", () -> {
            greeter.note("done");
            return greeter.noted();
        });
        say("echo", () -> ((EchoService) greeter).$echo("echo"));
        generic(from, protocol, step);
        say("slow", () -> greeter.slow(20_000));
        System.out.println("done");
    }

    private static void texts(DubboBootstrap bootstrap, String from, String step) {
        ReferenceConfig<Texts> reference = reference(Texts.class, from, "tri", step);
        bootstrap.reference(reference).start();
        Texts texts = reference.get();
        for (String text : List.of("java", "")) {
            say("upper " + text, () -> texts.upper(StringValue.of(text)).getValue());
        }
    }

    private static void generic(String from, String protocol, String step) {
        ReferenceConfig<GenericService> reference = reference(GenericService.class, from, protocol, step);
        reference.setInterface(Greeter.class.getName());
        reference.setGeneric("true");
        GenericService service = reference.get();
        say("generic", () -> service.$invoke("add", new String[] {"int", "int"}, new Object[] {1, 2}));
    }

    private static String describe(User user) {
        return user.getId() + " " + user.getName() + " " + user.getLabels() + " " + user.getColor() + " " + user.getScores() + " "
            + (user.getBest() == null ? null : user.getBest().getName());
    }

    /** Prints the outcome of a call in one line. */
    private static void say(String name, Callable<Object> call) {
        String outcome;
        try {
            outcome = String.valueOf(call.call());
        } catch (Throwable e) {
            String text = String.valueOf(e.getMessage());
            outcome = e.getClass().getName() + ": " + text.split("\n")[0];
        }
        System.out.println("> " + name + ": " + outcome);
    }
}
