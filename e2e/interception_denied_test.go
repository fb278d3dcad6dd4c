// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func (m *intercepted) denyList() string { return filepath.Join(m.dir, "denied") }

// deny replaces the deny list of the control plane.
func (m *intercepted) deny(t *testing.T, text string) {
	t.Helper()
	put(t, m.denyList()+"~", text)
	if err := os.Rename(m.denyList()+"~", m.denyList()); err != nil {
		t.Fatal(err)
	}
}

// denySerial denies the serial number of a client's certificate for a while. Servers that speak
// first must greet it before and after, but not meanwhile.
func (m *intercepted) denySerial(t *testing.T, client *machine, servers ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, client.name, "certs", "cert-chain.pem"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no certificate: %s", text)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	version, err := exec.Command(envoyBinary(t), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	greeted := strings.Contains(string(version), "/1.36.") // this version ignores serial numbers
	m.deny(t, fmt.Sprintf("serial %X\n", leaf.SerialNumber))
	for _, server := range servers {
		for range 20 { // each of them on a connection of its own
			eventually(t, 2*time.Minute, func() string {
				if got := hears(t.Context(), client, server); strings.HasPrefix(got, "hello ") != greeted {
					return fmt.Sprintf("%s: a denied serial number hears %q", server, got)
				}
				return ""
			})
		}
	}
	m.deny(t, "# nobody\n")
	for _, server := range servers {
		converse(t, client, server, "hello ")
	}
}

// hears returns the first line of a server to a client that sends nothing, or the error.
func hears(ctx context.Context, client *machine, server string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, "tcp", server)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }() // no more data is expected
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	line, _ := bufio.NewReader(c).ReadString('\n') // the data is followed by an error
	return line
}
