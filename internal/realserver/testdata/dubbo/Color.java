// SPDX-License-Identifier: Apache-2.0

package com.acme;

public enum Color { RED, GREEN, BLUE }
