// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProxyDebugRequests sends requests of operators to a running agent and its real Envoy.
func TestProxyDebugRequests(t *testing.T) {
	t.Parallel()
	const address = "127.77.9.2"
	a := startAgent(t, address, `,"terminationDrainDuration":"1s"`, newControlPlane(t), "OUTPUT_CERTS="+t.TempDir())
	a.waitReady()
	for args, want := range map[string]string{
		"request GET server_info":                                `"state": "LIVE"`,
		"request POST /logging?level=info":                       "active loggers:",
		"request GET debug/config --debug-port 15020":            `"localAddress": "` + address + `"`,
		"request GET healthz/ready --debug-port=15021":           "",
		"request GET nothing/here":                               "404 Not Found",
		"request GET debug/syncz --debug-port 15004":             `"typeUrl": "istio.io/debug/syncz"`,
		"request GET debug/xds --debug-port 15020":               `"connected":true`,
		"request GET debug/ndsz --debug-port 15020":              "404 Not Found",
		"request GET debug/logging --debug-port 15020":           "xdsproxy: ",
		"request POST debug/logging?ca=debug --debug-port 15020": "ca: debug",
		"request POST debug/config something --debug-port 15020": "only GET is allowed",
	} {
		out, errs, _ := program(t, peerName, []string{"OUTRIGGER_BIND_ADDRESS=" + address}, strings.Fields(args)...)
		if !strings.Contains(out+errs, want) {
			t.Errorf("%s: output %q, errors %q, want %q", args, out, errs, want)
		}
	}
	file := filepath.Join(a.dir, "etc/istio/proxy/grpc-bootstrap.json")
	if doc, err := os.ReadFile(file); err != nil || !strings.Contains(string(doc), "unix://"+a.dir+"/etc/istio/proxy/XDS") {
		t.Errorf("%s: got %s, error %v", file, doc, err)
	}
}
