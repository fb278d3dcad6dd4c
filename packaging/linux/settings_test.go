// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package main

import (
	"slices"
	"strings"
)

const (
	sidecarFile = "/var/lib/istio/envoy/sidecar.env"
	clusterFile = "/var/lib/istio/envoy/cluster.env"
	ownFile     = "/etc/outrigger/agent.env"
)

// settings runs the script of the agent's service with files of a machine, and a program that prints
// its arguments and environment instead of the agent.
func settings(m *machine) {
	m.write("/root/printer", "#!/bin/sh\necho \"arguments $*\"\nenv\n")
	m.run("chmod", "755", "/root/printer")
	const envoy = `{"binaryPath":"/usr/lib/outrigger/envoy"`
	for name, c := range map[string]struct {
		command string
		files   map[string]string
		want    []string // lines
		not     []string // what no line begins with
	}{
		"no files": {command: "run", want: []string{
			"arguments proxy sidecar --hot-restart", "POD_NAMESPACE=default", "PROV_CERT=/etc/certs", "OUTPUT_CERTS=/etc/certs", "PROXY_CONFIG=" + envoy + "}", "ISTIO_META_INTERCEPTION_MODE=REDIRECT",
		}, not: []string{"INSTANCE_IP="}},
		"order": {command: "run", files: map[string]string{sidecarFile: "A=1\nB=1\nC=1", clusterFile: "B=2\nC=2\n", ownFile: "C=3\n"}, want: []string{"A=1", "B=2", "C=3"}},
		"spelling": {
			command: "run", files: map[string]string{clusterFile: "# A=1\n\nexport B='two words'\nC=\"$(touch /root/run)\"\nD='it''s'\nE=a=b\n2F=1\nG-H=1\nnothing\nI=`touch /root/run`\nJ=$HOME"},
			want: []string{"B=two words", "C=$(touch /root/run)", "E=a=b", "I=`touch /root/run`", "J=$HOME"},
			not:  []string{"A=", "# A", "2F", "G-H", "nothing"},
		},
		"names of Istio": {
			command: "run", files: map[string]string{sidecarFile: "ISTIO_NAMESPACE=shop\nISTIO_SVC_IP=10.99.0.9\nISTIO_AGENT_FLAGS=--log_as_json", ownFile: "OUTRIGGER_AGENT_FLAGS=--proxyLogLevel * --profiling=false"},
			want: []string{"POD_NAMESPACE=shop", "INSTANCE_IP=10.99.0.9", "arguments proxy sidecar --hot-restart --log_as_json --proxyLogLevel * --profiling=false"},
		},
		"own values": {
			command: "run", files: map[string]string{clusterFile: "POD_NAMESPACE=a\nISTIO_NAMESPACE=b\nPROV_CERT=/c\nOUTPUT_CERTS=\nINSTANCE_IP=10.0.0.1\nISTIO_SVC_IP=10.0.0.2\nISTIO_INBOUND_INTERCEPTION_MODE=TPROXY"},
			want: []string{"POD_NAMESPACE=a", "PROV_CERT=/c", "OUTPUT_CERTS=/etc/certs", "INSTANCE_IP=10.0.0.1", "ISTIO_META_INTERCEPTION_MODE=TPROXY"},
		},
		"JSON":         {command: "run", files: map[string]string{clusterFile: `PROXY_CONFIG='{"concurrency":1}'`}, want: []string{"PROXY_CONFIG=" + envoy + `,"concurrency":1}`}},
		"YAML":         {command: "run", files: map[string]string{clusterFile: "PROXY_CONFIG='concurrency: 1'"}, want: []string{"PROXY_CONFIG=concurrency: 1", "binaryPath: /usr/lib/outrigger/envoy"}},
		"another path": {command: "run", files: map[string]string{clusterFile: `PROXY_CONFIG={"binaryPath":"/opt/envoy"}`}, want: []string{`PROXY_CONFIG={"binaryPath":"/opt/envoy"}`}},
		"rules": {
			command: "rules", files: map[string]string{clusterFile: "ISTIO_INBOUND_PORTS=80\nISTIO_SERVICE_CIDR='10.0.0.0/8'\nLD_PRELOAD=/tmp/x.so\nDRY_RUN_FILE_PATH=/root/x\nPATH=/tmp\nISTIO=1"},
			want: []string{"arguments istio-iptables -u 1337 -g 1337", "ISTIO_INBOUND_PORTS=80", "ISTIO_SERVICE_CIDR=10.0.0.0/8", "ISTIO_LOCAL_EXCLUDE_PORTS=22,15090,15021,15020", "ISTIO_INBOUND_INTERCEPTION_MODE=REDIRECT"},
			not:  []string{"LD_PRELOAD", "DRY_RUN", "PATH=/tmp", "ISTIO="},
		},
		"other rules": {command: "rules", files: map[string]string{clusterFile: "ISTIO_CUSTOM_IP_TABLES=true"}, want: []string{"machine: connections are not redirected, as the settings say"}, not: []string{"arguments"}},
		"no rules":    {command: "rules", files: map[string]string{ownFile: "ISTIO_INBOUND_INTERCEPTION_MODE=NONE"}, want: []string{"machine: connections are not redirected, as the settings say"}, not: []string{"arguments"}},
		"clean":       {command: "clean", want: []string{"arguments istio-clean-iptables"}},
		"not clean":   {command: "clean", files: map[string]string{ownFile: "ISTIO_CUSTOM_IP_TABLES=true"}, not: []string{"arguments"}},
	} {
		m.run("cp", "-p", ownFile, "/root/agent.env")
		m.run("rm", "-f", ownFile)
		for path, text := range c.files {
			m.write(path, text)
		}
		output := m.run("unshare", "--mount", "sh", "-e", "-c", "mount --bind /root/printer /usr/bin/outrigger-agent; exec /usr/lib/outrigger/machine "+c.command)
		lines := strings.Split(output, "\n")
		for _, want := range c.want {
			if !slices.Contains(lines, want) {
				m.t.Errorf("%s: %q is missing in\n%s", name, want, output)
			}
		}
		for _, line := range lines {
			if slices.ContainsFunc(c.not, func(start string) bool { return strings.HasPrefix(line, start) }) {
				m.t.Errorf("%s: the output has %q", name, line)
			}
		}
		m.run("rm", "-f", sidecarFile, clusterFile)
		m.run("cp", "-p", "/root/agent.env", ownFile)
	}
	if m.has("/root/run") {
		m.t.Error("a setting was run as a command")
	}
	if output, err := m.try("/usr/lib/outrigger/machine", "other"); err == nil || output != "machine: usage: machine rules|run|reload|clean" {
		m.t.Errorf("another command says %q, %v", output, err)
	}
}

// logs has the agent and Envoy write to files, which logrotate rotates, and to the journal.
func logs(m *machine) {
	const dir, settings = "/var/log/istio/", "/etc/outrigger/mesh.yaml"
	m.run("cp", "--preserve", ownFile, "/root/agent.env")
	m.run("cp", "--preserve", settings, "/root/mesh.yaml")
	m.run("sh", "-c", "echo OUTRIGGER_AGENT_FLAGS=--log_target "+dir+"agent.log --log_target stdout --log_rotate "+dir+"own >> "+ownFile)
	m.run("sh", "-c", "echo accessLogFile: "+dir+"access.log >> "+settings)
	m.run("systemctl", "restart", agentUnit)
	m.run("grep", "envoy started", dir+"agent.log", dir+"own")
	const (
		request = `exec 3<>/dev/tcp/10.99.0.7/80; printf 'GET / HTTP/1.1\r\nHost: orders.test\r\n\r\n' >&3; cat <&3`
		line    = "outbound|80||orders.test" // in the access log of the request
	)
	logged := func(where string, show ...string) {
		m.t.Helper()
		m.until("a request is logged in "+where, func() bool {
			_, _ = m.try("timeout", "1", "bash", "-c", request) // nothing answers it
			got, err := m.try(show...)
			return err == nil && strings.Contains(got, line) && !strings.Contains(got, "\x00")
		})
	}
	logged("a file", "cat", dir+"access.log")
	m.run("logrotate", "--force", "--state", "/root/rotated", "/etc/logrotate.d/outrigger-agent")
	logged("the old file", "zcat", dir+"access.log.1.gz")
	logged("the new file", "cat", dir+"access.log")
	m.run("zgrep", "envoy started", dir+"agent.log.1.gz")
	m.run("grep", "envoy started", dir+"own")

	m.run("sh", "-c", "cp /root/mesh.yaml "+settings+"; echo accessLogFile: /dev/stdout >> "+settings)
	logged("the journal", "journalctl", "--no-pager", "--unit", agentUnit)
	m.run("cp", "--preserve", "/root/mesh.yaml", settings)
	m.run("cp", "--preserve", "/root/agent.env", ownFile)
	m.run("systemctl", "restart", agentUnit)
}
