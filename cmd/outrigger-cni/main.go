// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/agent/logging"
	"github.com/outrigger-mesh/outrigger/cni"
	"github.com/outrigger-mesh/outrigger/internal/collateral"
)

// version is set by the linker; see the Makefile.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	if isPlugin() {
		if err := cni.Plugin(ctx, version); err != nil {
			_ = err.Print() // the exit code says it, too
			os.Exit(1)
		}
		return
	}
	code := run(ctx, os.Args)
	stop()
	os.Exit(code)
}

// peerName is the program that it replaces; it has no commands.
const peerName = "install-cni"

// run executes the command line, which begins with the program's name, and returns the exit code.
func run(ctx context.Context, argv []string) int {
	root := newRootCommand()
	if args := argv[1:]; filepath.Base(argv[0]) == peerName {
		root.SetArgs(append([]string{"install"}, args...))
	} else {
		root.SetArgs(args)
	}
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "outrigger-cni:", logging.Sentence(err))
		return 1
	}
	return 0
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "outrigger-cni",
		Short: "Redirects the connections of pods to their proxies, without privileged containers",
		Long: "outrigger-cni is a CNI plugin: container runtimes run it for each pod, and it redirects the\n" +
			"connections of pods with a proxy. It replaces Istio's istio-cni and install-cni.",
		Example:       "  outrigger-cni install\n  outrigger-cni version",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(newInstallCommand(), collateral.New())
	collateral.AddBuildVersion(root, version)
	return root
}

func newInstallCommand() *cobra.Command {
	var s settings
	var logs logging.Flags
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Keep the plugin installed on this node, and repair pods that were started without it",
		Long: "install copies this program to the node, adds it to the node's network configuration, and restores\n" +
			"both when they change. Each flag is also an environment variable: --cni-net-dir is CNI_NET_DIR.",
		Args: cobra.NoArgs,
		Example: "  # as the container of a DaemonSet, with the directories of the node mounted below /host\n" +
			"  outrigger-cni install --pod-namespace istio-system --repair-node-name node1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			log, err := logs.Logger()
			if err != nil {
				return err
			}
			if err := s.complete(); err != nil {
				return err
			}
			daemon, err := cni.New(s.Config, log)
			if err != nil {
				return err
			}
			return daemon.Run(cmd.Context())
		},
	}
	s.add(cmd.Flags())
	logs.Add(cmd.Flags())
	return cmd
}
