"""What both sides are asked: expressions at every border of grammar and conversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final = (
    *("", " ", "5", "+5", "-5", "--5", "+", "-", "05", "00000000005", "5 ", " 5", "5L", "5_0"),
    *("0x5", "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775808", "9007199254740993", "9" * 400, "0" * 400),
    *("5.0", "5.", ".5", ".", "5e0", "5E+0", "5e", "5e+", "5f", "5D", "5.5d", "5ff", "5.5.5"),
    *("\t5.5\n", "NaN", "-NaN", "nan", "Infinity", "+Infinity", "-Infinity", "inf", "infinity"),
    *("NaNd", "Infinityf", "1e308", "1e309", "-1e309", "1e-400", "4.9e-324", "-0.0", "0.0"),
    *("1e99999999999", "1e-99999999999", "0x1p3", "0X1.8P+1d", "0x.p1", "0x.8p0", "0x8.p0"),
    *("0x1p99999", "-0x1p99999", "0x1p-99999", "0x5", "\u0665", "\uff15", "\U0001d7d3", "\u00b2"),
    *("\xa05", "\x1f5.5", "5\u3000", "true", "TRUE", "True", " true", "false", "yes"),
    *("\u017frue", "tru\u0435", "it's", "it''s", "x", "Ünï", "日本", "a\nb", "vip", "%", "_"),
)
"""What a property may hold, around all the borders of Java's conversions."""

COMPARISONS: Final = (
    *("a = 5", "a <> 5", "a < 5", "5 >= a", "a = 2147483648", "a > -2147483648"),
    *("a = -2147483647", "a = 5.0", "a < 5.5", "5.5 > a", "a <> 4.9e-324", "a = -5.5"),
    *("a >= 1e308", "a = TRUE", "a = FALSE", "TRUE = a", "FALSE <> a", "a = '5'", "a = 'it''s'"),
    *("a < b", "a >= a", "a", "NOT a", "-a IS NULL", "a IS NULL", "a BETWEEN -5 AND 5"),
    *("a NOT BETWEEN 5 AND 5.5", "a CONTAINS '5'", "a NOT STARTSWITH ' '", "a ENDSWITH 's'"),
    *("a IN ('5', 'true')", "a NOT IN ('')"),
)
"""Of a property `a` with everything it can be compared with."""

EXPRESSIONS: Final = (
    *r"""
a=5
A = 5
$a_1 IS NULL
a.b = 5
a-b = 5
a@b = 5
1a = 5
_ IS NULL
a = 5;
a == 5
a != 5
a = 5 AND
= 5
()
(a = 5
a = 5)
((a = 5))
(a) = (5)
((a)) IN ('5')
(a = 5) = TRUE
a = b = c
a = 05
a = 00
a = 0l
a = 5l
a = 5LL
a = 5e
a = 5.e1
a = 5d
a = 0x5
a = 00.5
a = .
a = 5..
a = 0.0
a = 0e5
a = 1e-400
a = 1e309
a = 4.9e-324
a = 1e308
a = 9223372036854775807
a = 9223372036854775808
a = -9223372036854775808
a = ''
a = ''''
a = '''
a = 'x' 'y'
a = 'x''y'
a = "x"
a = 'x
a = +5
a = - 5
a = --5
a = +-+5
a = -+5
+a = 5
+(a = 5)
-(a = 5)
a = -'x'
-a = 5
-5 = -5
-TRUE IS NULL
-NULL IS NULL
- - 5 = 5
-5 < -'x'
a BETWEEN -'x' AND 5
a = 5 --
-- a = 5
a = 5 -
/**/a/***/=/*/*/5
/* a = 5
/*/ a = 5
a = 5 /*
a = 5 /* * / */
a = 5 /**
a = 5 */
NOT TRUE
NOT NOT TRUE
NOT NULL
NOT 5
NOT a = 5
NOT a > 5
NOT a IS NULL
NOT (a IS NULL)
NOT a CONTAINS 'x'
NOT a IN ('x')
NOT -a
not(a)IS null
a NOT = 5
a NOT NULL
a NOT
TRUE
FALSE
NULL
true AND TRUE
TRUE OR FALSE AND FALSE
(TRUE OR FALSE) AND FALSE
5 OR TRUE
TRUE AND NULL
FALSE AND NULL
TRUE OR NULL
FALSE OR NULL
NULL AND NULL
NULL IS NULL
a = NULL
NULL = a
NULL <> NULL
TRUE = TRUE
TRUE <> FALSE
TRUE = 5
5 = TRUE
'x' = TRUE
TRUE = 'x'
TRUE IS NULL
5 IS NOT NULL
'' IS NULL
(a = 5) IS NULL
a IS NOT
a IS TRUE
5 = 5.0
5 < 5.5
5.5 > 5
'5' = 5
5 = '5'
'x' = 5
5.5 = '5.5'
'x' = 'x'
'a' <> 'b'
9007199254740993 = 9007199254740992.0
2147483648 > 2147483647
2147483648 = '2147483648'
a > 'x'
'x' > a
a > TRUE
TRUE > a
a > NULL
(a = 5) > 5
a > (a = 5)
a > 5 > 5
a > b > c
a BETWEEN 5 AND 3
a BETWEEN 3 AND 5
a BETWEEN 5 AND 5
a BETWEEN 5.5 AND 5
a BETWEEN -3 AND -5
a BETWEEN 'x' AND 'y'
a BETWEEN NULL AND 5
a BETWEEN b AND c
a BETWEEN 5 AND b AND TRUE
5 BETWEEN 3 AND 7
a NOT BETWEEN 5 AND 3
'5' BETWEEN 3 AND 7
a BETWEEN 1 AND 9 AND b BETWEEN 1 AND 9 OR TRUE
a BETWEEN 5
a BETWEEN 9007199254740992.0 AND 9007199254740993
a BETWEEN 2147483648 AND 5
a BETWEEN 1 OR 5
a IN ('5')
a IN ()
a IN (5)
a IN ('5',)
a IN ('5' '6')
a IN '5'
5 IN ('5')
'5' IN ('5')
a IN ('1','2','3','4','5','6')
a NOT IN ('5') = TRUE
a IN ('x') IN ('y')
a IN (b)
a IN (NULL)
a CONTAINS ''
(a < 5) CONTAINS '' OR TRUE
(a < 5) CONTAINS 'x' OR TRUE
(a < 5) NOT ENDSWITH '' OR TRUE
a NOT CONTAINS ''
a CONTAINS b
a CONTAINS 5
5 CONTAINS '5'
'abc' CONTAINS 'b'
'abc' NOT ENDSWITH 'b'
NULL CONTAINS 'x'
TRUE NOT CONTAINS 'x'
a CONTAINS 'x' CONTAINS 'y'
a CONTAINS
a LIKE '5'
a LIKE '5' AND TRUE
a = 5 LIKE
a + 5 > 3
a * 5
TRUE garbage
TRUE )
TRUE '
TRUE ;
between = 5
and = 5
Null IS NULL
contains = 5
anda = 5 and b=5
a=5AND b=5
a = 5and b = 5
inx IN('x')
""".strip().splitlines(),
    *("\u212a IS NULL", "a i\u017f null", "a\xa0= 5", "a\x0b= 5", "a\f=\r\n5\t", "", " "),
    *("a = 'x\ny'", "a = --5\n", "a = 5 --\n", "a = 5 -- AND b = 5\nAND b = 6", "--\na = 5"),
)
"""Every production at its borders: whole, cut short, with too much, with what does not fit."""

MESSAGES: Final[tuple[Mapping[str, str], ...]] = (
    {},
    {"a": "5", "b": "5", "c": "7"},
    {"a": "7", "b": "5"},
    {"a": "x", "b": "5", "anda": "5", "inx": "x"},
    {"b": "5"},
    {"a": "true", "A": "5", "TAGS": "5"},
)
