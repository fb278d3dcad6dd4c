// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/outrigger-mesh/outrigger/e2e/kube/parts"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	_, err := parts.Get(ctx, os.Stdout)
	if err == nil && slices.Equal(os.Args[1:], []string{"node"}) {
		_, err = parts.GetNode(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube:", err)
		os.Exit(1)
	}
}
