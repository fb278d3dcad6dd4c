// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// streamsConfig has a database outside the mesh, and one whose port another program has taken.
const streamsConfig = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: database, namespace: default}
spec:
  hosts: [database.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: OUTSIDE, name: tcp, protocol: TCP}, {number: TAKEN, name: other, protocol: TCP, targetPort: OUTSIDE}]
  endpoints: [{address: 127.0.0.1}]
`

// TestTCPOfUp connects to TCP services, one outside the mesh and one of the mesh, at the addresses that
// outrigger up shows. A port that another program has taken delays nothing.
func TestTCPOfUp(t *testing.T) {
	s := newShop(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const greeter = "\n- name: greeter\n  command: [SELF]\n  env: {OUTRIGGER_TEST_APP: greeter}\n  port: 19002\n  servicePort: 5432\n  protocol: TCP\n"
	const last = "  port: 18083\n  servicePort: 8080\n  ready: {path: /healthz}\n"
	s.replace("mesh.yaml", last, last+strings.Replace(greeter, "SELF", self, 1))
	listen := func(address string) (net.Listener, string) {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() }) // ends the server
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return l, port
	}
	database, outside := listen("127.0.0.1:0")
	go func() { _ = greet(database) }() // ends with the listener
	_, taken := listen("0.0.0.0:0")
	config := strings.NewReplacer("OUTSIDE", outside, "TAKEN", taken).Replace(streamsConfig)
	if err := os.WriteFile(filepath.Join(s.dir, "config", "streams.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.waitFor("Ctrl-C ends it", time.Minute)
	eventually(t, 2*time.Minute, func() string {
		if problem := "the proxy cannot listen at " + net.JoinHostPort(orders, taken); !strings.Contains(s.out.String(), problem) {
			return "the output lacks " + problem
		}
		return ""
	})
	shown := regexp.MustCompile(`(?m)^orders +(\S+) +(\S+)$`).FindAllStringSubmatch(s.out.String(), -1)
	want := map[string]string{"database.example.com:" + outside: net.JoinHostPort(orders, outside), "greeter.default.svc.cluster.local:5432": net.JoinHostPort(orders, "5432")}
	if len(shown) != len(want) {
		t.Errorf("the table has %q of orders, want %v", shown, want)
	}
	for service, at := range want {
		if !strings.Contains(regexp.MustCompile(` +`).ReplaceAllString(s.out.String(), " "), "\norders "+service+" "+at+"\n") {
			t.Errorf("the table has %q, want %s at %s", shown, service, at)
		}
		if got := echoed(t, at); got != "hello\nand back\n" {
			t.Errorf("%s at %s: %q", service, at, got)
		}
	}
	s.interrupt(2 * time.Minute)
	s.wantNothingLeft(t)
}

// echoed returns what a greeter says first, and what it answers.
func echoed(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // everything was read
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	read := bufio.NewReader(conn)
	first, err := read.ReadString('\n')
	if err == nil {
		_, err = io.WriteString(conn, "and back\n")
	}
	second := ""
	if err == nil {
		second, err = read.ReadString('\n')
	}
	if err != nil {
		t.Errorf("%s: %v", address, err)
	}
	return first + second
}
