// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	metav1alpha1 "istio.io/api/meta/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func (r *running) read(name string) string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	must(r.t, err)
	return string(text)
}

func (r *running) edited(name string) *model.Config {
	r.t.Helper()
	key := model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: name}
	r.eventually(name+" is there", func() bool { return r.Get(key) != nil })
	c := r.Get(key).Clone()
	c.Labels = map[string]string{"edited": "yes"}
	return c
}

// TestFileStoreEditsInPlace checks that objects in files that users wrote are edited in place.
func TestFileStoreEditsInPlace(t *testing.T) {
	t.Parallel()
	const head, bad = "# head\n", "# bad\nkind: [\n---\n"
	a, b, c := workload("a", "10.0.0.1"), "# b\n"+workload("b", "10.0.0.2"), "# c\n"+workload("c", "10.0.0.3")
	r := follow(t, func(dir string) {
		must(t, os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(head+a+b+bad+c), 0o640))
	})
	version, err := r.Update(t.Context(), r.edited("b"))
	must(t, err)
	if got := r.Get(defaultKey("b")); got.ResourceVersion != version || got.Labels["edited"] != "yes" {
		t.Errorf("the store does not show its own write: %v", got)
	}
	text := r.read("all.yaml")
	if !strings.HasPrefix(text, head+a+"# b\n") || !strings.HasSuffix(text, "---\n"+bad+c) || !strings.Contains(text, "edited: ") {
		t.Errorf("the file after the update:\n%s", text)
	}
	if info, err := os.Stat(filepath.Join(r.dir, "all.yaml")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the mode after the update is %v, error %v; want 0640", info.Mode(), err)
	}
	must(t, r.Delete(t.Context(), defaultKey("b"), version), r.Delete(t.Context(), defaultKey("a"), ""))
	if text := r.read("all.yaml"); text != "---\n"+bad+c {
		t.Errorf("the file after the deletions:\n%s", text)
	}
	r.write("alone.yaml", workload("alone", "10.0.0.4"))
	must(t, r.Delete(t.Context(), r.edited("alone").Key, ""))
	if _, err := os.Stat(filepath.Join(r.dir, "alone.yaml")); err == nil {
		t.Error("the file is still there without any object")
	}
	if r.Get(defaultKey("alone")) != nil {
		t.Error("the store still shows a deleted object")
	}
}

// TestFileStoreKeepsJSON edits objects in files of JSON, which stay JSON.
func TestFileStoreKeepsJSON(t *testing.T) {
	t.Parallel()
	object := func(name, address string) string {
		return `{"kind": "WorkloadEntry", "apiVersion": "networking.istio.io/v1", "metadata": {"name": "` + name + `"}, "spec": {"address": "` + address + `"}}` + "\n"
	}
	r := follow(t, func(dir string) {
		must(t, os.WriteFile(filepath.Join(dir, "one.json"), []byte(object("one", "10.0.0.1")), 0o640))
		must(t, os.WriteFile(filepath.Join(dir, "two.json"), []byte(object("a", "10.0.0.2")+"---\n"+object("b", "10.0.0.3")), 0o640))
	})
	for name, file := range map[string]string{"one": "one.json", "b": "two.json"} {
		_, err := r.Update(t.Context(), r.edited(name))
		must(t, err)
		text := r.read(file)
		if !spelled(file, []byte(text)) || !strings.Contains(text, `"edited"`) || r.Get(defaultKey(name)).Labels["edited"] != "yes" {
			t.Errorf("%s after the update:\n%s", file, text)
		}
		// Other fields need the whole document.
		next := *r.Get(defaultKey(name))
		next.Annotations = map[string]string{"note": "a: b # c"}
		_, err = r.Update(t.Context(), &next)
		must(t, err)
		if text := r.read(file); !spelled(file, []byte(text)) || !strings.Contains(text, `"a: b # c"`) {
			t.Errorf("%s after the second update:\n%s", file, text)
		}
	}
	must(t, r.Delete(t.Context(), defaultKey("b"), ""), r.Delete(t.Context(), defaultKey("one"), ""))
	if text := r.read("two.json"); text != object("a", "10.0.0.2") {
		t.Errorf("two.json after the deletion:\n%s", text)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "one.json")); err == nil {
		t.Error("one.json is still there")
	}
}

// TestFileStoreReadsBeforeTheWriterAdopts removes an object from a file with an invalid document.
// The object must be gone, also if the store reads the file before the writer reports what it
// wrote.
func TestFileStoreReadsBeforeTheWriterAdopts(t *testing.T) {
	t.Parallel()
	const bad = "# bad\nkind: [\n---\n"
	a, b := workload("a", "10.0.0.1"), workload("b", "10.0.0.2")
	r := follow(t, func(dir string) {
		must(t, os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(a+bad+b), 0o640))
	})
	path, left := filepath.Join(r.dir, "all.yaml"), []byte("---\n"+bad+b)
	must(t, os.WriteFile(path, left, 0o640))
	r.lookAtAll()
	r.refresh(t.Context())
	if r.Get(defaultKey("a")) == nil {
		t.Error("the object was removed although the invalid document may be the object")
	}
	if version := r.adopt(t.Context(), path, decodeContent(t.Context(), path, left), defaultKey("a")); version != "" || r.Get(defaultKey("a")) != nil || r.Get(defaultKey("b")) == nil {
		t.Errorf("the deleted object: got version %q and %v, want none", version, r.Get(defaultKey("a")))
	}
}

func defaultKey(name string) model.Key {
	return model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: name}
}

// TestFileStoreKeepsInvalidDocuments checks that a writer that has not seen a user's invalid edit
// does not overwrite it.
func TestFileStoreKeepsInvalidDocuments(t *testing.T) {
	t.Parallel()
	r := follow(t, nil)
	r.write("a.yaml", workload("a", "10.0.0.1"))
	c := r.edited("a")
	r.write("a.yaml", workload("a", "half an address"))
	_, err := r.Update(t.Context(), c)
	if !errors.Is(err, config.ErrMalformed) || config.StatusCode(err) != 409 || !strings.Contains(err.Error(), "a.yaml:4: ") && !strings.Contains(err.Error(), "half an address") {
		t.Errorf("Update() = %v, want ErrMalformed with the place", err)
	}
	if text := r.read("a.yaml"); text != workload("a", "half an address") {
		t.Errorf("the file was changed: %s", text)
	}
	r.write("new.yaml", workload("new", "half an address"))
	r.wantProblem("default/new")
	next := c.Clone()
	next.Name, next.ResourceVersion = "new", ""
	if _, err := r.Create(t.Context(), next); !errors.Is(err, config.ErrMalformed) {
		t.Errorf("Create() = %v, want ErrMalformed", err)
	}
	c.ResourceVersion = "" // overwrites any version
	_, err = r.Update(t.Context(), c)
	must(t, err)
	r.eventually("only the other problem is left", func() bool { return len(r.Problems()) == 1 })
}

// TestFileStoreKeepsEditsOfUsers checks that no edit of a user is lost while a writer changes
// another object of the same file. The user's editor writes a new file and renames it. It may
// therefore revert the writer's change, but not the other way round.
func TestFileStoreKeepsEditsOfUsers(t *testing.T) {
	t.Parallel()
	const edits = 200
	r := follow(t, nil)
	r.write("all.yaml", workload("counted", "10.0.0.1")+workload("person", "10.0.1.0"))
	key := r.edited("counted").Key
	stop := make(chan struct{})
	var all sync.WaitGroup
	var writes atomic.Int64
	all.Go(func() {
		for ; !closed(stop); writes.Add(1) {
			_, err := r.Patch(t.Context(), key, func(c *model.Config) error {
				c.Annotations = map[string]string{countKey: strconv.FormatInt(writes.Load(), 10)}
				return nil
			})
			if err != nil {
				t.Errorf("write %d: %v", writes.Load(), err)
				return
			}
		}
	})
	for i := range edits {
		last := writes.Load()
		r.eventually("the writer continues", func() bool { return writes.Load() > last })
		text := ""
		r.eventually(fmt.Sprintf("edit %d of the person is there", i), func() bool {
			text = r.read("all.yaml")
			return strings.Contains(text, fmt.Sprintf("address: 10.0.1.%d}", i))
		})
		r.write("all.yaml~", strings.Replace(text, fmt.Sprintf("10.0.1.%d}", i), fmt.Sprintf("10.0.1.%d}", i+1), 1))
		r.rename("all.yaml~", "all.yaml")
	}
	close(stop)
	all.Wait()
	r.wantAddress("person", fmt.Sprintf("10.0.1.%d", edits))
	t.Logf("%d writes between %d edits", writes.Load(), edits)
}

// TestFileStoreCreatesWhereItWas checks that an object is created in the file that it comes from, and in one
// of its own where that file cannot have it.
func TestFileStoreCreatesWhereItWas(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	const full = `{"apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry", "metadata": {"name": "in"}, "spec": {"address": "10.0.0.3"}}`
	r := follow(t, func(dir string) {
		must(t, os.Mkdir(filepath.Join(dir, "deep"), 0o700), os.Mkdir(filepath.Join(dir, ".git"), 0o700), os.Symlink(outside, filepath.Join(dir, "out")),
			os.WriteFile(filepath.Join(dir, "all.yaml"), []byte("# head\n"+strings.TrimSuffix(workload("a", "10.0.0.1"), "\n---\n")), 0o640),
			os.WriteFile(filepath.Join(dir, "bad.yaml"), []byte("{[ "), 0o640),
			os.WriteFile(filepath.Join(dir, "full.json"), []byte(full), 0o640))
	})
	a := r.edited("a")
	for name, c := range map[string]struct{ source, want string }{
		"append": {"/all.yaml:8", "all.yaml"}, "gone": {"/deep/was.yaml:1", "deep/was.yaml"}, "no-line": {"/was.yml", "was.yml"}, "json": {"/was.json:1", "was.json"}, "full": {"/full.json:1", ""},
		"broken": {"/bad.yaml:3", "bad.yaml"}, "hidden": {"/.git/a.yaml:1", ""}, "linked": {"/out/a.yaml:1", ""}, "elsewhere": {"/../x.yaml:1", ""},
		"no-yaml": {"/a.txt:1", ""}, "no-directory": {"/none/a.yaml:1", ""}, "unknown": {"", ""},
	} {
		one := &model.Config{Key: defaultKey(name), Spec: a.Spec}
		if c.source != "" {
			one.Source = r.dir + c.source
		}
		if _, err := r.Create(t.Context(), one); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := c.want
		if want == "" {
			want = "default/workloadentry-" + name + ".yaml"
		}
		if got := r.Get(defaultKey(name)); got == nil || !strings.HasPrefix(got.Source, filepath.Join(r.dir, want)+":") {
			t.Errorf("%s: got %v, want it in %s", name, got, want)
		}
	}
	if text := r.read("all.yaml"); !strings.HasPrefix(text, "# head\n"+strings.TrimSuffix(workload("a", "10.0.0.1"), "---\n")+"---\napiVersion: ") {
		t.Errorf("the file has\n%s", text)
	}
	if r.read("full.json") != full || !json.Valid([]byte(r.read("was.json"))) {
		t.Errorf("the JSON is %s and %s", r.read("full.json"), r.read("was.json"))
	}
	if files, err := os.ReadDir(outside); err != nil || len(files) > 0 {
		t.Errorf("outside are %v, %v", files, err)
	}
	// Somebody adds the object to the file at the same time.
	r.write("all.yaml", workload("late", "10.0.0.7"))
	if _, err := r.Create(t.Context(), &model.Config{Key: defaultKey("late"), Spec: a.Spec, Source: r.dir + "/all.yaml:1"}); !errors.Is(err, config.ErrExists) {
		t.Errorf("Create() = %v, want ErrExists", err)
	}
}

// TestFileStoreReadOnlyDirectory checks that a directory without write access, such as a ConfigMap,
// is read, and that status is kept in memory if no state directory is writable.
func TestFileStoreReadOnlyDirectory(t *testing.T) {
	t.Parallel()
	dir, state := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(workload("a", "10.0.0.1")), 0o644),
		os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o555), os.Chmod(state, 0o555))
	r := followWith(t, Config{Dir: dir, State: state})
	if os.Geteuid() == 0 {
		// Change the file system's user ID of this thread only.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		must(t, unix.Setfsuid(65534))
		defer func() { must(t, unix.Setfsuid(0)) }()
	}
	c := r.edited("a")
	_, err := r.Update(t.Context(), c)
	if !errors.Is(err, config.ErrReadOnly) || config.StatusCode(err) != 405 {
		t.Errorf("Update() = %v, want ErrReadOnly", err)
	}
	if err := r.Delete(t.Context(), c.Key, ""); !errors.Is(err, config.ErrReadOnly) || !strings.HasSuffix(err.Error(), ": permission denied)") {
		t.Errorf("Delete() = %v, want ErrReadOnly", err)
	}
	other := c.Clone()
	other.Name, other.ResourceVersion = "b", ""
	if _, err := r.Create(t.Context(), other); !errors.Is(err, config.ErrReadOnly) {
		t.Errorf("Create() = %v, want ErrReadOnly", err)
	}
	for _, reason := range []string{"one", "two"} {
		c.Status = &metav1alpha1.IstioStatus{Conditions: []*metav1alpha1.IstioCondition{{Type: "x", Reason: reason}}}
		version, err := r.UpdateStatus(t.Context(), c)
		must(t, err)
		c = r.Get(c.Key).Clone()
		if c.ResourceVersion != version || c.Status.(*metav1alpha1.IstioStatus).GetConditions()[0].GetReason() != reason {
			t.Errorf("status: got %v", c.Status)
		}
	}
	if n := strings.Count(r.log.String(), "kept in memory only"); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}
}

// TestFileStoreWritesThroughLinks checks that a link to a file elsewhere remains a link.
func TestFileStoreWritesThroughLinks(t *testing.T) {
	t.Parallel()
	target := filepath.Join(t.TempDir(), "shared.yaml")
	must(t, os.WriteFile(target, []byte(workload("a", "10.0.0.1")), 0o600))
	dir := t.TempDir()
	must(t, os.Symlink(target, filepath.Join(dir, "link.yaml")))
	r := followWith(t, Config{Dir: dir, Links: []string{filepath.Dir(target)}})
	_, err := r.Update(t.Context(), r.edited("a"))
	must(t, err)
	text, err := os.ReadFile(target)
	must(t, err)
	if info, err := os.Lstat(filepath.Join(r.dir, "link.yaml")); err != nil || info.Mode()&os.ModeSymlink == 0 || !strings.Contains(string(text), "edited") {
		t.Errorf("the link has mode %v, error %v; its file contains %s", info.Mode(), err, text)
	}
}

// TestFileStoreAvoidsExistingName checks that a user's file with the name that a new object's file
// would have is not changed.
func TestFileStoreAvoidsExistingName(t *testing.T) {
	t.Parallel()
	r := follow(t, func(dir string) { must(t, os.Mkdir(filepath.Join(dir, "default"), 0o700)) })
	r.write("default/workloadentry-a.yaml", workload("other", "10.0.0.1"))
	c := r.edited("other")
	c.Name, c.ResourceVersion, c.Source = "a", "", ""
	_, err := r.Create(t.Context(), c)
	must(t, err)
	long := c.Clone()
	long.Name = strings.Repeat(strings.Repeat("x", 60)+".", 4) + "xx"
	_, err = r.Create(t.Context(), long)
	must(t, err)
	if r.Get(long.Key) == nil || !strings.Contains(r.read("default/workloadentry-a-2.yaml"), "name: a") ||
		r.read("default/workloadentry-a.yaml") != workload("other", "10.0.0.1") {
		t.Error("the new object's file was not written, or the user's file was changed")
	}
	must(t, r.Delete(t.Context(), long.Key, ""), r.Delete(t.Context(), c.Key, ""))
	if left, err := os.ReadDir(filepath.Join(r.dir, "default")); err != nil || len(left) != 1 {
		t.Errorf("files: got %v, error %v; want only the user's file", left, err)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
