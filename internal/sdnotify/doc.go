// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package sdnotify reports the state of a program to the service manager that started it, by the
// protocol of sd_notify(3): when the program is ready, that it still works, and that it stops.
//
// Agent and control plane use it. It does nothing without a service manager, and it never ends the
// program. Run owns no goroutines and keeps no connection open.
package sdnotify
