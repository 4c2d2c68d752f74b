// SPDX-License-Identifier: Apache-2.0

package com.acme;

import com.google.protobuf.StringValue;
import java.util.Locale;

/** The service of the tests over triple. Its messages are in protobuf. */
public interface Texts {
    StringValue upper(StringValue text);

    /** The implementation, for clients of yodel. */
    class Service implements Texts {
        public StringValue upper(StringValue text) {
            if (text.getValue().isEmpty()) {
                throw new IllegalArgumentException("no text");
            }
            return StringValue.of(text.getValue().toUpperCase(Locale.ROOT));
        }
    }
}
