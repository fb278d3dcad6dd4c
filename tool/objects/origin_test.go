// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// TestOrigin checks which stores a version may be written to.
func TestOrigin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	old, later := time.Date(2026, 5, 1, 3, 0, 0, 0, time.Local), time.Date(2026, 5, 2, 3, 0, 0, 0, time.Local)
	stored := func(at time.Time) standing { return standing{object: &model.Config{Created: at}} }
	for name, c := range map[string]struct {
		stores, store string
		source        string // of the newest version
		deleted       bool   // it was deleted since
		there         standing
		want          string // part of the error
		elsewhere     bool   // the object comes from another store
	}{
		"the store":                    {stores: "fs:///gen fs:///own", store: "fs:///own", source: "/own/a.yaml:3"},
		"with a slash":                 {stores: "fs:///gen fs:///own/", store: "fs:///own", source: "/own/shop/a.yaml"},
		"with parameters":              {stores: "fs:///own?links=/x", store: "fs:///own?status=/y", source: "/own/a.yaml:3"},
		"a link":                       {stores: "fs://" + dir, store: "fs://" + link, source: dir + "/a.yaml:3"},
		"a name that begins the same":  {stores: "fs:///own fs:///own2", store: "fs:///own", source: "/own2/a.yaml:3", elsewhere: true},
		"below the other store":        {stores: "fs:///own fs:///own/deep", store: "fs:///own", source: "/own/deep/a.yaml:3", elsewhere: true},
		"no store of it":               {stores: "fs:///own", store: "fs:///other", source: "/own/a.yaml:3", there: stored(later), want: "fs:///other is no store of control plane"},
		"an older control plane":       {store: "fs:///own", source: "/own/a.yaml:3", want: "does not say which stores it reads"},
		"no version":                   {stores: "fs:///own", store: "fs:///own"},
		"etcd":                         {stores: "etcd://me@a,b:2379/mesh?tls=true", store: "etcd://b/mesh/", source: "etcd://a:2379,b:2379/mesh/x"},
		"another prefix of etcd":       {stores: "etcd://a/mesh", store: "etcd://a/mesh2", source: "etcd://a:2379/mesh/x", want: "etcd://a/mesh2 is no store"},
		"etcd by another name":         {stores: "etcd://a/mesh", store: "etcd://127.0.0.1/mesh", source: "etcd://a:2379/mesh/x", there: stored(old)},
		"etcd with another object":     {stores: "etcd://a/mesh", store: "etcd://127.0.0.1/mesh", source: "etcd://a:2379/mesh/x", there: stored(later), want: "is no store"},
		"etcd after the deletion":      {stores: "etcd://a/mesh", store: "etcd://127.0.0.1/mesh", source: "etcd://a:2379/mesh/x", deleted: true, want: "is no store"},
		"a password":                   {stores: "fs:///own", store: "etcd://me:secret@a", source: "/own/a.yaml:3", want: "etcd://me:xxxxx@a is no store"},
		"a cluster":                    {stores: "k8s://", store: "k8s:///home/me/config?context=x", source: "k8s:// VirtualService/shop/a", there: stored(old)},
		"another cluster":              {stores: "k8s://", store: "k8s://", source: "k8s:// VirtualService/shop/a", there: stored(later), want: "are of different clusters"},
		"a cluster without the object": {stores: "k8s://", store: "k8s://", source: "k8s:// VirtualService/shop/a", want: "are of different clusters"},
		"deleted in a cluster":         {stores: "k8s://", store: "k8s://", source: "k8s:// VirtualService/shop/a", deleted: true},
		"a cluster beside a directory": {stores: "k8s:// fs:///own", store: "fs:///own", source: "k8s:// VirtualService/shop/a", elsewhere: true},
		"a server beside a directory":  {stores: "xds://10.0.0.1:15010 fs:///own", store: "fs:///own", source: "xds://10.0.0.1:15010/networking.istio.io/v1/VirtualService/shop/a", elsewhere: true},
		"a store that is gone":         {stores: "fs:///own", store: "fs:///own", source: "/before/a.yaml:3", deleted: true},
	} {
		o := origin{control: "10.0.0.7:15014", stores: strings.Fields(c.stores), store: c.store, key: model.Key{Kind: model.VirtualService, Namespace: "shop", Name: "a"}}
		last := report.Version{Source: c.source, Created: old}
		own, err := o.check(last, c.source != "" && !c.deleted, c.there)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if own != (c.want == "" && !c.elsewhere) {
			t.Errorf("%s: it comes from the store: %v", name, own)
		}
	}
	o := origin{control: "10.0.0.7:15014", stores: []string{"k8s://", "xds://10.0.0.1:15010", "fs:///own", "fs:///other"}, store: "fs:///own", key: model.Key{Kind: model.VirtualService, Namespace: "shop", Name: "a"}}
	for source, want := range map[string]string{
		"k8s:// VirtualService/shop/a":                                      ": change it with kubectl, or name it with --store k8s://",
		"xds://10.0.0.1:15010/networking.istio.io/v1/VirtualService/shop/a": ": change it where that server has it from",
		"/other/a.yaml:3": "comes from /other/a.yaml:3, not from fs:///own, where it would be a second one: name it with --store fs:///other",
	} {
		if err := o.elsewhere(report.Version{Source: source}); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", source, err, want)
		}
	}
}
