// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package specialaddr

import (
	"net/netip"
	"testing"
)

func TestSpecialAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "0.0.0.0": true, "0.1.2.3": true, "169.254.169.254": true, "169.254.0.1": true,
		"100.100.100.200": true, "168.63.129.16": true, "192.0.0.192": true, "224.0.0.1": true, "255.255.255.255": true, "240.0.0.1": true,
		"::1": true, "::": true, "fe80::1": true, "ff02::1": true, "fd00:ec2::254": true, "fd20:ce::254": true, "fe80::1%eth0": true,
		"::ffff:127.0.0.1": true, "::ffff:169.254.169.254": true, "64:ff9b::a9fe:a9fe": true, "64:ff9b::7f00:1": true,
		"2002:7f00:1::": true, "2002:a9fe:a9fe::1": true, "::127.0.0.1": true, "::169.254.169.254": true, "64:ff9b:1::a9fe:a9fe": true, "::ffff:0:7f00:1": true,
		"64:ff9b:1:a9fe:a9:fe00::": true, "64:ff9b:1:a9fe:a9:fe00:0:1": true, "64:ff9b:1:12a9:fe:a9fe::": true, "64:ff9b:1:1234:7f:0:100::": true,
		"10.0.0.1": false, "192.168.1.1": false, "172.16.0.1": false, "8.8.8.8": false, "100.64.0.1": false, "168.63.129.17": false,
		"2001:db8::1": false, "fd00::1": false, "64:ff9b::808:808": false, "64:ff9b:1::808:808": false, "64:ff9b:1:808:8:800::": false, "64:ff9b:1:1234:8:808:800::": false, "2002:808:808::1": false,
	} {
		if got := Is(netip.MustParseAddr(address)); got != want {
			t.Errorf("Is(%s) = %t", address, got)
		}
	}
}

func TestParseHost(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"127.0.0.1": "127.0.0.1", "::1": "::1", "[::1]": "::1", "[fe80::1%eth0]": "fe80::1%eth0", "[::ffff:1.2.3.4]": "::ffff:1.2.3.4",
		"": "", "]host": "", "[[::1]]": "", "[::1": "", "::1]": "", "]::1[": "", "[127.0.0.1]": "", "[]": "", "::1]]": "", "[::1]:80": "",
	} {
		got, err := ParseHost(host)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("ParseHost(%q) = %s, %v; want %q", host, got, err, want)
		}
	}
}

func TestAllowedHosts(t *testing.T) {
	t.Parallel()
	a, err := ParseAllowed([]string{" Registry.Local ", "other:5000", "169.254.7.0/24", "127.0.0.9", "[::1]", ""})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		address, resolved string
		ok                bool
	}{
		{"registry.local:443", "127.0.0.1:443", true},
		{"REGISTRY.LOCAL:80", "127.0.0.1:80", true},
		{"other:5000", "127.0.0.1:5000", true},
		{"other:5001", "127.0.0.1:5001", false},
		{"x:80", "169.254.7.8:80", true},
		{"x:80", "169.254.8.8:80", false},
		{"x:80", "127.0.0.9:80", true},
		{"x:80", "127.0.0.1:80", false},
		{"x:80", "[::1]:80", true},
		{"x:80", "[fe80::1%eth0]:80", false},
		{"x:80", "[::ffff:127.0.0.1]:80", false},
		{"x:80", "10.0.0.1:80", true},
		{"x:80", "nonsense", false},
	} {
		err := a.Check(tc.address, tc.resolved)
		if (err == nil) != tc.ok {
			t.Errorf("%s at %s: got error %v, want allowed: %t", tc.address, tc.resolved, err, tc.ok)
		}
	}
	for _, bad := range []string{"10.0.0.0/40", "x/y", "]host", "[host]", "[[::1]]", "[::1", "[::1]]:80", "[host]:80"} {
		if _, err := ParseAllowed([]string{bad}); err == nil {
			t.Errorf("ParseAllowed accepted %s", bad)
		}
	}
}
