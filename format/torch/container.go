package torch

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"io/fs"
	"math/big"
	"strconv"
	"strings"

	"github.com/firstpassage/fpa/format"
)

// readZip reads the object of a zip container.
func readZip(data []byte, lim format.Limits) (Value, error) {
	a, err := openArchive(data, lim)
	if err != nil {
		return nil, err
	}
	if err := a.checkVersion(); err != nil {
		return nil, err
	}
	pickle, at, err := a.member("data.pkl")
	if err != nil {
		return nil, err
	}
	where := shorten(a.prefix + "data.pkl")
	t := &tensors{storages: map[string]*Storage{}, fetch: func(key string) ([]byte, error) {
		b, _, err := a.member("data/" + key)
		return b, err
	}}
	root, n, err := unpickle(pickle, at, where, lim, t)
	if err != nil {
		return nil, err
	}
	if n != len(pickle) {
		return nil, fail(at+int64(n), where, "%d bytes after the pickle, expected none", len(pickle)-n)
	}
	return root, t.finish(int64(len(data)))
}

// archive is a zip file with the members of a checkpoint.
type archive struct {
	data    []byte
	prefix  string // of the members' names, with its slash
	members map[string]*zip.File
}

// openArchive reads the directory of a zip file. Members' bytes are looked at
// when they are needed.
func openArchive(data []byte, lim format.Limits) (*archive, error) {
	const where = "zip archive"
	// The zip package allocates by the size of the directory in the file.
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, fail(0, where, "%s; the file is cut short or damaged", err)
	}
	a := &archive{data: data, members: make(map[string]*zip.File, len(r.File))}
	var pickles []string
	for _, f := range r.File {
		name := f.Name
		if !fs.ValidPath(strings.TrimSuffix(name, "/")) || strings.ContainsAny(name, "\\\x00") {
			return nil, fail(0, where, "a member with the name %s, expected a plain path such as archive/data.pkl", quote(name))
		}
		if a.members[name] != nil {
			return nil, fail(0, where, "two members with the name %s", quote(name))
		}
		a.members[name] = f
		if prefix, ok := strings.CutSuffix(name, "/data.pkl"); ok && !strings.Contains(prefix, "/") {
			pickles = append(pickles, prefix)
		}
	}
	switch len(pickles) {
	case 1:
		a.prefix = pickles[0] + "/"
	case 0:
		return nil, fail(0, where, "no member NAME/data.pkl among %d; this is no PyTorch checkpoint", len(r.File))
	default:
		return nil, fail(0, where, "%d pickles (%s), expected one", len(pickles), quote(strings.Join(pickles, ", ")))
	}
	if a.members[a.prefix+"constants.pkl"] != nil {
		return nil, unsupported(0, where, "a TorchScript program; load it with torch.jit.load and save its state_dict()")
	}
	return a, nil
}

// member finds a member, whose name is given without the prefix: its bytes,
// and where they are in the file.
func (a *archive) member(name string) ([]byte, int64, error) {
	f := a.members[a.prefix+name]
	where := "zip member " + quote(a.prefix+name)
	if f == nil {
		return nil, 0, fail(0, where, "not in the archive; the file is damaged")
	}
	const encrypted = 1 // flag bit 0
	if f.Flags&encrypted != 0 {
		return nil, 0, unsupported(0, where, "encrypted")
	}
	if f.Method != zip.Store {
		return nil, 0, unsupported(0, where, "compressed (method %d), expected stored bytes as torch.save writes them; load the file with PyTorch and save it again", f.Method)
	}
	at, err := f.DataOffset()
	if err != nil {
		return nil, 0, fail(0, where, "%s; the file is cut short or damaged", err)
	}
	size := int64(len(a.data))
	if f.CompressedSize64 != f.UncompressedSize64 {
		return nil, 0, fail(at, where, "%d stored bytes of %d", f.CompressedSize64, f.UncompressedSize64)
	}
	if at < 0 || at > size || f.UncompressedSize64 > uint64(size-at) {
		return nil, 0, fail(at, where, "%d bytes reach beyond the end of the file", f.UncompressedSize64)
	}
	end := at + int64(f.UncompressedSize64)
	return a.data[at:end:end], at, nil
}

// highestVersion is the newest version of the container that PyTorch reads.
const highestVersion = 10

// checkVersion fails for containers of another version or byte order. Either
// member may be missing: PyTorch wrote byteorder from 2.1 on.
func (a *archive) checkVersion() error {
	if a.members[a.prefix+"version"] != nil {
		b, at, err := a.member("version")
		if err != nil {
			return err
		}
		text := string(bytes.TrimSpace(b))
		version, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return fail(at, "version", "found %s, expected a number", quote(text))
		}
		if version > highestVersion {
			return unsupported(at, "version", "version %d of the container, expected at most %d", version, highestVersion)
		}
	}
	if a.members[a.prefix+"byteorder"] != nil {
		b, at, err := a.member("byteorder")
		if err != nil {
			return err
		}
		switch order := string(b); order {
		case "little":
		case "big":
			return unsupported(at, "byteorder", "big-endian data; load the file with PyTorch on a little-endian machine and save it again")
		default:
			return fail(at, "byteorder", "found %s, expected little or big", quote(order))
		}
	}
	return nil
}

// The first two pickles of a legacy file.
const legacyProtocol = 1001

var legacyMagic, _ = new(big.Int).SetString("1950a86a20f9469cfc6c", 16)

// readLegacy reads the object of a legacy container.
func readLegacy(data []byte, lim format.Limits) (Value, error) {
	at := 0 // of what has not been read
	next := func(where string, t *tensors) (Value, error) {
		v, n, err := unpickle(data[at:], int64(at), where, lim, t)
		at += n
		return v, err
	}
	magic, err := next("first pickle", nil)
	if err != nil {
		return nil, err
	}
	if n, ok := magic.(*big.Int); !ok || n.Cmp(legacyMagic) != 0 {
		return nil, unsupported(0, "first pickle", "found %s, expected the magic number of torch.save; a pickle that Python wrote without PyTorch is not read", kindOf(magic))
	}
	start := int64(at)
	protocol, err := next("protocol version", nil)
	if err != nil {
		return nil, err
	}
	if protocol != int64(legacyProtocol) {
		return nil, fail(start, "protocol version", "found another value than %d", legacyProtocol)
	}
	start = int64(at)
	machine, err := next("machine facts", nil)
	if err != nil {
		return nil, err
	}
	facts, ok := machine.(*Dict)
	if !ok {
		return nil, fail(start, "machine facts", "found %s, expected a dict", kindOf(machine))
	}
	switch little, _ := facts.Get("little_endian"); little {
	case true:
	case false:
		return nil, unsupported(start, "machine facts", "big-endian data; load the file with PyTorch and save it again on a little-endian machine")
	default:
		return nil, fail(start, "machine facts", "no truth value little_endian")
	}
	t := &tensors{storages: map[string]*Storage{}}
	root, err := next("object pickle", t)
	if err != nil {
		return nil, err
	}
	start = int64(at)
	keys, err := next("storage keys", nil)
	if err != nil {
		return nil, err
	}
	list, ok := keys.(*List)
	if !ok {
		return nil, fail(start, "storage keys", "found %s, expected a list", kindOf(keys))
	}
	if err := readStorages(data, at, list.Items, t.storages); err != nil {
		return nil, err
	}
	return root, t.finish(int64(len(data)))
}

// readStorages finds the bytes of the storages of a legacy file, which start
// at and end with the file.
func readStorages(data []byte, at int, keys []Value, storages map[string]*Storage) error {
	const lengthBytes = 8 // of the number of elements before each storage
	found := map[string]bool{}
	for _, k := range keys {
		key, ok := k.(string)
		if !ok {
			return fail(int64(at), "storage keys", "found %s as a key, expected a string", kindOf(k))
		}
		s := storages[key]
		if s == nil {
			return fail(int64(at), "storage keys", "found %s, which the object does not use", quote(key))
		}
		where := "storage " + quote(key)
		if found[key] {
			return fail(int64(at), where, "listed twice")
		}
		found[key] = true
		if len(data)-at < lengthBytes {
			return fail(int64(at), where, "%d bytes are left, expected a number of elements; the file is cut short", len(data)-at)
		}
		if n := binary.LittleEndian.Uint64(data[at:]); n != uint64(s.elements) {
			return fail(int64(at), where, "%d elements, expected %d as in the pickle", n, s.elements)
		}
		at += lengthBytes
		bytes, err := s.DType.Bytes(s.elements)
		if err != nil || bytes > int64(len(data)-at) {
			return fail(int64(at), where, "%d elements of %s, but only %d bytes are left; the file is cut short", s.elements, s.DType, len(data)-at)
		}
		s.Data = data[at : at+int(bytes) : at+int(bytes)]
		at += int(bytes)
	}
	if len(found) != len(storages) {
		return fail(int64(at), "storage keys", "%d storages, expected the %d that the object uses", len(found), len(storages))
	}
	if at != len(data) {
		return fail(int64(at), "file", "%d bytes after the last storage, expected none", len(data)-at)
	}
	return nil
}
