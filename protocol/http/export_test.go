// SPDX-License-Identifier: Apache-2.0

package http

// OwnHTTP2 says which engine serves HTTP/2.
const OwnHTTP2 = ownHTTP2
