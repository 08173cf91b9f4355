package zz
import _ "github.com/firstpassage/fpa/format"
