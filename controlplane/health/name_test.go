// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestRegisteredNames checks that the names are the same as in Istio if those are valid.
func TestRegisteredNames(t *testing.T) {
	long := strings.Repeat("g", 300)
	for _, test := range []struct {
		group, address, network string
		want                    []string
	}{
		{"web", "10.0.0.1", "", []string{"web-10.0.0.1"}},
		{"web", "10.0.0.1", "vm", []string{"web-10.0.0.1-vm", "web-10.0.0.1"}},
		{"web", "2001:db8::9", "", []string{"web-2001-db8--9"}},
		{"web", "2001:DB8:0::9", "", []string{"web-2001-db8--9"}},
		{"web", "::ffff:10.0.0.1", "", []string{"web-10.0.0.1"}},
		{long, "10.0.0.1", "", []string{long[:253-len("-10.0.0.1")] + "-10.0.0.1"}},
		{"", "10.0.0.1", "vm", nil},
	} {
		got := RegisteredNames(&model.Proxy{AutoRegisterGroup: test.group, IPs: []string{test.address}, Network: test.network})
		if !slices.Equal(got, test.want) {
			t.Errorf("RegisteredNames(%+v) = %q", test, got)
		}
	}
	if got := RegisteredNames(&model.Proxy{AutoRegisterGroup: "web"}); got != nil {
		t.Errorf("RegisteredNames() without an address = %q, want none", got)
	}
	a, b := registeredName("web", "10.0.0.1", "Net_1"), registeredName("web", "10.0.0.1", "net_1")
	if a == b || !strings.HasPrefix(a, "web-10.0.0.1-net-1-") {
		t.Errorf("names in two networks: got %q and %q, want different names with the network", a, b)
	}
}

// FuzzRegisteredName checks that the name is valid for any values that a proxy sends.
func FuzzRegisteredName(f *testing.F) {
	for _, s := range [][3]string{
		{"web", "10.0.0.1", "net"},
		{"web", "fd00::", ""},
		{"-", "::", "-"},
		{"Ü", "nonsense", "../../x"},
		{strings.Repeat("a.-", 200), "::1", strings.Repeat("-.", 200)},
		{strings.Repeat("..", 126), "1.2.3.4", "-"},
	} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, group, address, network string) {
		name := registeredName(group, address, network)
		if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
			t.Errorf("the name %q is invalid: %v", name, faults)
		}
		if again := registeredName(group, address, network); again != name {
			t.Errorf("the name is %q, then %q", name, again)
		}
	})
}
