// SPDX-License-Identifier: Apache-2.0

package transcode

// Zero is for tests of all types of fields.
var Zero = zero
