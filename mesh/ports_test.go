// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
)

func TestParseListener(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"   0: 0100017F:3AA6 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 9 1 x":      "127.1.0.1:15014 1000",
		"   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9 1 x":      "0.0.0.0:8080 0",
		"   2: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0 00:0 0 7 0 9": "[::1]:80 7",
		"   3: 0000000000000000FFFF00000100007F:0050 00000000000000000000000000000000:0000 0A 0:0 00:0 0 7 0 9": "127.0.0.1:80 7",
		"   4: 0100017F:3AA6 0100007F:1234 01 00000000:00000000 00:00000000 00000000  1000        0 9 1 x":      "", // a connection
		"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode":      "",
		"   5: 01:3AA6 0:0 0A 0:0 00:0 0 7 0": "",
		"":                                    "",
	} {
		l, ok := parseListener(line)
		if got := l.address.String() + " " + itoa(l.user); ok != (want != "") || ok && got != want {
			t.Errorf("%q: got %s, %t, want %q", line, got, ok, want)
		}
	}
}

// TestListeners finds a socket of this process among those of the system.
func TestListeners(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // the test has ended then
	for _, one := range listeners() {
		if one.address == l.Addr().(*net.TCPAddr).AddrPort() {
			if one.user != os.Getuid() {
				t.Errorf("it belongs to user %d", one.user)
			}
			if got := holder(one.address.Addr(), int(one.address.Port())); got != "another program" {
				t.Errorf("the holder of a port of this user is %s", got)
			}
			return
		}
	}
	t.Errorf("%s is missing in %v", l.Addr(), listeners())
}

// TestTwoMeshes checks the network and the file of a mesh that runs already.
func TestTwoMeshes(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	withdraw, err := announce(temp, "", "127.77.8.1:15014", "/state", "", "/shop/mesh.yaml", "4711")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = withdraw() }) // the directory is temporary
	m := &meshFile{file: "/shop/mesh.yaml", network: netip.MustParsePrefix("127.77.8.0/24"), lines: map[string]int{"network": 2}}
	if got := m.checkPorts(temp); len(got) != 1 || got[0].Text != "this mesh runs already, as process 4711: end that with Ctrl-C or kill 4711" {
		t.Errorf("the same mesh: %v", got)
	}
	m.file = "/other/mesh.yaml"
	got := m.checkPorts(temp)
	if len(got) != 1 || got[0].Line != 2 || !strings.HasPrefix(got[0].Text, "network 127.77.8.0/24 is that of another outrigger up, process 4711 with /shop/mesh.yaml: end that, or give this mesh its own network, for example network: 127.") {
		t.Errorf("the same network: %v", got)
	}
	if got := m.checkPorts(t.TempDir()); len(got) > 0 {
		t.Errorf("without the other mesh: %v", got)
	}
}
