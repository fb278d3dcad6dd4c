// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package machine

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

const (
	// backupFormat is the version of the format of archives.
	backupFormat = 1
	manifestName = "manifest.json"
	// maxBackup is the maximum size of all files of a backup in bytes: they are held in memory.
	maxBackup = 256 << 20
)

// backupDirs are the directories of a backup, and their names in the archive.
type backupDirs struct{ settings, state string }

// manifest describes an archive. It is its first file.
type manifest struct {
	Format  int                    `json:"format"`
	Version string                 `json:"version"` // of the program that wrote it
	Files   map[string]backupEntry `json:"files"`
}

type backupEntry struct {
	SHA256  string      `json:"sha256"`
	Mode    fs.FileMode `json:"mode"`
	content []byte
}

const backupLong = `Write the state of the control plane of this machine to an archive, or put it back: the
settings and objects in /etc/outrigger, and the authority with its private key, the
status and the last good versions of objects in /var/lib/outrigger-control. Keep the
archive like a key. What is in etcd or a cluster is not part of it, nor are join tokens:
used ones would be valid again.

A restore writes to an empty state directory, and refuses while a control plane runs.
Proxies keep their identities.`

// NewBackupCommand returns the command backup. version is that of the program.
func NewBackupCommand(version string) *cobra.Command {
	dirs, socket := backupDirs{}, ""
	cmd := &cobra.Command{Use: "backup", Short: "Save and restore a control plane", Long: backupLong, Example: "  sudo outrigger backup save mesh.tar.gz\n  sudo outrigger backup restore mesh.tar.gz"}
	save := &cobra.Command{
		Use: "save FILE", Short: "Write the state of the control plane to an archive", Long: backupLong, Example: "  sudo outrigger backup save mesh.tar.gz", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			archive, n, err := dirs.save(version)
			if err == nil {
				err = durable.Replace(args[0], archive, 0o600)
			}
			if err == nil {
				cmd.Printf("saved %d files to %s\n", n, args[0])
			}
			return err
		},
	}
	restore := &cobra.Command{
		Use: "restore FILE", Short: "Put back the state of the control plane", Long: backupLong, Example: "  sudo outrigger backup restore mesh.tar.gz", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if conn, err := dialAdmin(cmd.Context(), socket); err == nil {
				_ = conn.Close() // nothing was sent
				return errors.New("the control plane runs: stop it first (systemctl stop outrigger-control)")
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }() // only read
			n, err := dirs.restore(f)
			if err == nil {
				cmd.Printf("restored %d files; start the control plane\n", n)
			}
			return err
		},
	}
	for _, c := range []*cobra.Command{save, restore} {
		flags := c.Flags()
		flags.SortFlags = false
		flags.StringVar(&dirs.settings, "settings", "/etc/outrigger", "directory of the settings")
		flags.StringVar(&dirs.state, "state", "/var/lib/outrigger-control", "directory of the state")
		flags.StringVar(&socket, "socket", adminSocket, "admin socket of the control plane (OUTRIGGER_ADMIN_SOCKET)")
	}
	cmd.AddCommand(save, restore)
	return cmd
}

// named returns the directories by their names in archives.
func (d backupDirs) named() map[string]string {
	return map[string]string{"settings": d.settings, "state": d.state}
}

// save returns an archive and its number of files.
func (d backupDirs) save(version string) ([]byte, int, error) {
	// The authority writes several files under this lock.
	if lock, err := os.Open(filepath.Join(d.state, "ca", ".lock")); err == nil {
		defer func() { _ = lock.Close() }() // releases the lock
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH); err != nil {
			return nil, 0, err
		}
	}
	m := manifest{Format: backupFormat, Version: version, Files: map[string]backupEntry{}}
	total := int64(0)
	for _, name := range []string{"settings", "state"} {
		dir := d.named()[name]
		err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			inside, err := filepath.Rel(dir, file)
			switch {
			case err != nil:
				return err
			case entry.IsDir() && name == "state" && inside == "join":
				return fs.SkipDir
			case entry.IsDir() || strings.HasPrefix(entry.Name(), ".") || strings.Contains(entry.Name(), durable.Suffix):
				return nil
			case !entry.Type().IsRegular():
				return fmt.Errorf("%s is no regular file: replace it by what it leads to", file)
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			if total += info.Size(); total > maxBackup {
				return fmt.Errorf("%s and %s have more than %d MiB: remove what does not belong there", d.settings, d.state, maxBackup>>20)
			}
			content, err := os.ReadFile(file)
			sum := sha256.Sum256(content)
			m.Files[path.Join(name, filepath.ToSlash(inside))] = backupEntry{SHA256: hex.EncodeToString(sum[:]), Mode: info.Mode().Perm(), content: content}
			return err
		})
		if err != nil {
			return nil, 0, fmt.Errorf("saving %s: %w", dir, err)
		}
	}
	archive, err := m.write()
	return archive, len(m.Files), err
}

// write returns the archive. The same files make the same bytes.
func (m *manifest) write() ([]byte, error) {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	add := func(name string, mode fs.FileMode, content []byte) error {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: int64(mode), Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	err = add(manifestName, 0o600, text)
	for _, name := range m.names() {
		err = errors.Join(err, add(name, m.Files[name].Mode, m.Files[name].content))
	}
	err = errors.Join(err, archive.Close(), zip.Close())
	return out.Bytes(), err
}

func (m *manifest) names() []string { return slices.Sorted(maps.Keys(m.Files)) }

// readBackup reads an archive and checks all of it.
func readBackup(in io.Reader) (*manifest, error) {
	zip, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("this is no backup: %w", err)
	}
	archive := tar.NewReader(io.LimitReader(zip, 2*maxBackup))
	m := &manifest{}
	found := 0
	for first := true; ; first = false {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) && !first {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("the backup is damaged: %w", err)
		}
		content, err := io.ReadAll(archive)
		switch {
		case err != nil:
			return nil, fmt.Errorf("the backup is damaged: %w", err)
		case first && (header.Name != manifestName || json.Unmarshal(content, m) != nil):
			return nil, errors.New("this is no backup: it does not begin with " + manifestName)
		case first && m.Format != backupFormat:
			return nil, fmt.Errorf("the backup has format %d, and this program reads format %d: use outrigger %q, which wrote it", m.Format, backupFormat, m.Version)
		case first:
			continue
		}
		entry, listed := m.Files[header.Name]
		sum := sha256.Sum256(content)
		switch dir, inside, _ := strings.Cut(header.Name, "/"); {
		case !listed || entry.content != nil || dir != "settings" && dir != "state" || !filepath.IsLocal(inside) || header.Typeflag != tar.TypeReg:
			return nil, fmt.Errorf("the backup is damaged: %q does not belong into it", header.Name)
		case hex.EncodeToString(sum[:]) != entry.SHA256:
			return nil, fmt.Errorf("the backup is damaged: the checksum of %s is wrong", header.Name)
		}
		entry.content = append([]byte{}, content...)
		entry.Mode = entry.Mode.Perm()
		m.Files[header.Name] = entry
		found++
	}
	if found != len(m.Files) {
		return nil, fmt.Errorf("the backup is damaged: it has %d of %d files", found, len(m.Files))
	}
	return m, nil
}

// restore writes the files of an archive and returns their number. Nothing is written before all of
// the archive has been checked. New files belong to the owner of the directory.
func (d backupDirs) restore(in io.Reader) (int, error) {
	m, err := readBackup(in)
	if err != nil {
		return 0, err
	}
	for _, dir := range []string{filepath.Join(d.state, "ca"), filepath.Join(d.settings, "config")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		if len(entries) > 0 {
			return 0, fmt.Errorf("%s is not empty: a restore replaces no control plane; move the directory away first", dir)
		}
	}
	for _, name := range m.names() {
		dir, inside, _ := strings.Cut(name, "/")
		if err := restoreFile(d.named()[dir], filepath.FromSlash(inside), m.Files[name]); err != nil {
			return 0, fmt.Errorf("restoring %s: %w", name, err)
		}
	}
	return len(m.Files), nil
}

// restoreFile writes a file below a directory, and makes the directories on the way. A root keeps
// links in them from leading elsewhere.
func restoreFile(dir, inside string, entry backupEntry) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // only a handle
	uid, gid := -1, -1
	parent := "."
	own := func(info fs.FileInfo) {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			uid, gid = int(st.Uid), int(st.Gid)
		}
	}
	for _, part := range strings.Split(filepath.Dir(inside), string(filepath.Separator)) {
		info, err := root.Stat(parent)
		if err != nil {
			return err
		}
		own(info)
		parent = filepath.Join(parent, part)
		if err := root.Mkdir(parent, 0o755); err == nil {
			err = root.Lchown(parent, uid, gid)
			if err != nil {
				return err
			}
		} else if !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	info, err := root.Stat(parent)
	if err != nil {
		return err
	}
	own(info)
	_ = root.Remove(inside) // replaced below, or not there
	f, err := root.OpenFile(inside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(entry.content)
	return errors.Join(err, f.Chown(uid, gid), f.Chmod(entry.Mode), f.Sync(), f.Close())
}
