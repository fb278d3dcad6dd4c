// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package isolation

import (
	"math"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// nobody is the user and the group of applications for which there is no better one.
const nobody = 65534

// User is who runs applications.
type User struct {
	UID, GID int
	Groups   []uint32
	// Name and Home are empty if unknown.
	Name, Home string
}

// Caller returns the user who ran sudo, according to an environment, or nobody. It never returns
// root or a user of an agent, whose connections are not redirected, as a user or group.
func Caller(environ []string) User {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	uid, ok := applicationID(env["SUDO_UID"])
	if !ok {
		return User{UID: nobody, GID: nobody, Name: "nobody"}
	}
	u := User{UID: uid, GID: nobody, Name: env["SUDO_USER"]}
	if gid, ok := applicationID(env["SUDO_GID"]); ok {
		u.GID = gid
	}
	known, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return u
	}
	u.Name, u.Home = known.Username, known.HomeDir
	if ids, err := known.GroupIds(); err == nil {
		for _, id := range ids {
			if gid, ok := applicationID(id); ok {
				u.Groups = append(u.Groups, uint32(gid))
			}
		}
	}
	return u
}

// applicationID parses the number of a user or group that an application may have.
func applicationID(text string) (id int, ok bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return int(n), err == nil && n != 0 && (n < firstID || n > lastID) && n != math.MaxUint32 // the last means "unchanged"
}

// Root is the user root without capabilities.
func Root() User { return User{Name: "root"} }

// Nobody reports whether the user is nobody, who owns no files.
func (u User) Nobody() bool { return u.UID == nobody }

// Public reports whether every user may read or run a file or directory: it and the directories
// above it.
func Public(path string) bool {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode()&0o005 != 0o005 {
		return false
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}
