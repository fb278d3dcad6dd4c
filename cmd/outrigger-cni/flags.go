// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/cni"
)

// settings are the flags of the command install.
type settings struct {
	cni.Config
	kubeconfigMode string
	port           int
	account        string // directory with the service account
}

func (s *settings) add(f *pflag.FlagSet) {
	f.SortFlags = false
	in, re := &s.Install, &s.Repair
	f.StringVar(&in.NetDir, "mounted-cni-net-dir", "/host/etc/cni/net.d", "directory of network configurations, as this container sees it")
	f.StringVar(&in.HostNetDir, "cni-net-dir", "/etc/cni/net.d", "the same directory, as the node sees it")
	f.StringVar(&in.BinDir, "mounted-cni-bin-dir", "/host/opt/cni/bin", "directory of the node's plugins, as this container sees it")
	f.StringVar(&in.ConfName, "cni-conf-name", "", "network configuration that is changed (default: the first one, which the runtime uses)")
	f.BoolVar(&in.Chained, "chained-cni-plugin", true, "add the plugin to a network configuration; false writes one of its own, for Multus")
	f.StringSliceVar(&in.ExcludeNamespaces, "exclude-namespaces", []string{"kube-system"}, "namespaces whose pods start without a query to the API server and without rules")
	f.StringVar(&in.KubeconfigName, "kubeconfig-filename", "ZZZ-outrigger-cni-kubeconfig", "kubeconfig of the plugin, in the directory of network configurations")
	f.StringVar(&s.kubeconfigMode, "kubeconfig-mode", "0600", "permissions of that file")
	f.StringVar(&s.account, "service-account-dir", "/var/run/secrets/kubernetes.io/serviceaccount", "directory with the token of this container and the roots of the API server")
	f.StringVar(&in.Namespace, "pod-namespace", "", "namespace of this pod")
	f.StringVar(&in.DaemonSet, "daemonset-name", "", "DaemonSet of this pod: when it is deleted, the plugin is removed from the node (default: the plugin stays)")
	f.StringVar(&in.Account, "plugin-service-account", "outrigger-cni-plugin", "service account of the plugin at the API server, in the namespace of this pod")
	f.IntVar(&s.port, "monitoring-port", 15014, "port of /readyz, /healthz and /metrics")
	f.BoolVar(&re.Enabled, "repair-enabled", true, "find pods that were started without rules")
	f.StringVar(&re.Node, "repair-node-name", "", "node whose pods are repaired")
	f.BoolVar(&re.RepairPods, "repair-repair-pods", true, "set the rules in the network namespace of such a pod")
	f.BoolVar(&re.DeletePods, "repair-delete-pods", false, "delete such a pod, unless it is repaired")
	f.BoolVar(&re.LabelPods, "repair-label-pods", false, "label such a pod, unless it is repaired or deleted")
	f.StringVar(&re.LabelKey, "repair-broken-pod-label-key", "cni.istio.io/uninitialized", "name of the label")
	f.StringVar(&re.LabelValue, "repair-broken-pod-label-value", "true", "value of the label")
	f.StringVar(&re.InitContainer, "repair-init-container-name", "istio-validation", "init container that fails in such a pod")
	f.IntVar(&re.ExitCode, "repair-init-container-exit-code", 126, "exit code of the init container in such a pod")
	f.StringVar(&re.Namespaces, "mounted-netns-dir", "/host/var/run/netns", "directory with the network namespaces of pods, as this container sees it")
}

// complete derives what the flags do not name, and opens the monitoring port.
func (s *settings) complete() error {
	mode, err := strconv.ParseUint(s.kubeconfigMode, 8, 9)
	if err != nil || mode&0o600 != 0o600 {
		return fmt.Errorf("--kubeconfig-mode is %q: it must be octal permissions with which root reads and writes, such as 0600", s.kubeconfigMode)
	}
	s.Install.KubeconfigMode = fs.FileMode(mode)
	if s.Install.Namespace == "" {
		return fmt.Errorf("--pod-namespace is empty: it must be the namespace of this pod")
	}
	s.Install.Cluster = cni.Cluster{URL: server(), TokenFile: filepath.Join(s.account, "token"), RootsFile: filepath.Join(s.account, "ca.crt")}
	s.Repair.ExcludeNamespaces = s.Install.ExcludeNamespaces
	if s.Install.Program, err = os.Executable(); err != nil {
		return err
	}
	if s.Monitoring, err = net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(s.port))); err != nil {
		return fmt.Errorf("--monitoring-port: %w", err)
	}
	return nil
}
